"""Files with the genes of human and mouse: cells of one species are annotated as if they were alone."""

import re

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from support.opened import detected

from scperformer.cells.detect import gene_table
from scperformer.cells.mixtures import species_of_genes
from scperformer.io.gene_table import human_genes

NUM, AMBIENT, NUM_DOUBLETS = 100, 40, 10


@pytest.fixture(scope="session")
def mouse_of() -> dict[str, str]:
    return {human: mouse for mouse, human in human_genes().orthologs.items()}


STYLES = {
    "genomes": (lambda gene: f"GRCh38_{gene}", lambda gene: f"mm10___{gene.capitalize()}"),
    "genomes in Seurat": (lambda gene: f"hg19-{gene}", lambda gene: f"mm10-{gene.capitalize()}"),
    "spelling": (
        str,
        lambda gene: (
            f"Gm{gene}" if gene.capitalize().isupper() or not gene.isupper() else gene.capitalize()
        ),
    ),
}


def mixed(cells: ad.AnnData, num_human: int, style: str, logarithms: bool = False) -> ad.AnnData:
    """The first cells as human ones, the others as those of a mouse, and ten sums of both; with ambient RNA."""
    rng = np.random.default_rng(0)
    counts = cells.X[:NUM].toarray()
    profile = counts.sum(axis=0) / counts.sum()
    other = rng.multinomial(AMBIENT, profile, size=NUM)
    is_human = (np.arange(NUM) < num_human)[:, None]
    x = np.hstack([np.where(is_human, counts, other), np.where(is_human, other, counts)])
    x = np.vstack([x, x[:NUM_DOUBLETS] + x[-NUM_DOUBLETS:]])
    human, mouse = STYLES[style]
    names = [*map(human, cells.var_names), *map(mouse, cells.var_names)]
    obs = pd.DataFrame(index=[f"cell{number}" for number in range(len(x))])
    found = ad.AnnData(
        sparse.csr_matrix(x, dtype=np.float32), obs=obs, var=pd.DataFrame(index=names)
    )
    if logarithms:
        totals = x.sum(axis=1, keepdims=True)
        found.X = sparse.csr_matrix(np.log1p(x / totals * 1e4).astype(np.float32))
    return found


@pytest.mark.parametrize("logarithms", [False, True], ids=["counts", "logarithms"])
@pytest.mark.parametrize("style", STYLES)
def test_cells_and_genes_of_the_other_species_are_found(pbmc3k, style, logarithms):
    cells = mixed(pbmc3k, 70, style, logarithms)
    findings = detected(cells)
    human = STYLES[style][0]
    assert gene_table(cells, findings).index.tolist() == [human(gene) for gene in pbmc3k.var_names]
    assert findings.is_foreign.tolist() == [False] * 70 + [True] * 40
    assert findings.droplets is None
    text = "genes of human and mouse: human genes and 70 of 110 cells are used; 30 of mouse and 10 of several species"
    assert any(note.startswith(text) for note in findings.notes)
    # the species can be named, and is ignored if none of its cells are there
    assert (
        detected(cells, species="mouse").is_foreign.tolist()
        == [True] * 70 + [False] * 30 + [True] * 10
    )
    assert (
        detected(mixed(pbmc3k, 100, style), species="mouse").is_foreign[:NUM].tolist()
        == [False] * NUM
    )


def test_few_cells_of_the_other_species(pbmc3k):
    findings = detected(mixed(pbmc3k, 98, "genomes"))
    assert findings.is_foreign.tolist() == [False] * 98 + [True] * 2 + [False] * 8 + [True] * 2


def test_genes_of_one_species_are_no_mixture(pbmc3k, mouse_of):
    human = list(map(str, pbmc3k.var_names))
    assert species_of_genes(human) is None
    assert species_of_genes([mouse_of.get(gene, gene.capitalize()) for gene in human]) is None
    assert species_of_genes([f"GRCh38_{gene}" for gene in human]) is None
    # some transgenes
    assert species_of_genes([*human, *(gene.capitalize() for gene in human[:40])]) is None
    assert species_of_genes([f"GENE{number}" for number in range(500)]) is None


def test_ensembl_ids_and_other_genomes_tell_species():
    human = [f"ENSG{number:011}" for number in range(300)]
    found = species_of_genes([*human, *(f"ENSMUSG{number:011}" for number in range(200))])
    assert found.tolist() == ["human"] * 300 + ["mouse"] * 200
    fly = [f"dm6___FBgn{number:07}" for number in range(200)]
    assert (
        species_of_genes([*(f"GRCh38_G{number}" for number in range(300)), *fly]).tolist()[-1]
        == "dm6"
    )


@pytest.mark.slow
def test_human_cells_are_called_as_if_they_were_alone(pbmc3k, pbmc_model, command, write, tmp_path):
    alone = pbmc3k[:70].copy()
    write(alone, "alone.h5ad")
    for style in STYLES:
        write(mixed(pbmc3k, 70, style), f"{style}.h5ad")
    for name in ("alone", *STYLES):
        ran = command(
            "predict",
            tmp_path / f"{name}.h5ad",
            f"model_path={pbmc_model}",
            f"output={tmp_path}/{name}.out.h5ad",
        )
        assert ran.code == 0
    expected = ad.read_h5ad(tmp_path / "alone.out.h5ad").obs
    for style in STYLES:
        found = ad.read_h5ad(tmp_path / f"{style}.out.h5ad").obs
        assert found["scperformer_label"][:70].tolist() == expected["scperformer_label"].tolist()
        np.testing.assert_allclose(
            found["scperformer_confidence"][:70], expected["scperformer_confidence"], atol=1e-5
        )
        assert (found["scperformer_call"][70:] == "unknown").all()
        assert found["scperformer_low_quality"][70:].all()


def test_the_report_says_why_these_cells_are_unknown(pbmc3k, write, command, tmp_path):
    """Half of the cells are of a mouse: no reason to doubt the tissue of the model."""
    path = write(mixed(pbmc3k, 45, "genomes"))
    out = tmp_path / "out.h5ad"
    ran = command("predict", path, "model_path=pbmc3k", f"output={out}")
    assert re.search(r"^warning: .*\b65 cells", ran.err, re.MULTILINE)
    assert ad.read_h5ad(out).uns["scperformer"]["other_species"] == {"num_cells": 65}
    assert command("report", out, f"output={tmp_path / 'page.html'}").code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Cells of another species, or of several, are unknown: out (65 cells)." in page
    assert "Is it the right tissue?" not in page
