"""Cells of two species in a file with the genes of both, such as a xenograft: which genes and cells are of one of them.

The genes of the other species are left out as if they had not been measured. Cells of the other species, and droplets
with cells of both, have no part in what a file states about all of its cells.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from scperformer.cells.values import linear_values
from scperformer.io.axes import GENOMES
from scperformer.io.gene_names import ENSEMBL, MOUSE_SYMBOL, SPECIES_OF_PREFIX
from scperformer.io.rows import Rows

MIN_GENES_OF_SPECIES = 50  # of each of two species, and a share of all genes
MIN_SHARE_OF_SPECIES = 0.1
MIN_BOTH_WAYS = 0.5  # share of the symbols in mouse spelling that are there in human spelling, too
# Share of a cell's counts that are of its species. Ambient RNA of the other one has a few percent, droplets of both
# species have half.
MIN_OWN_SHARE = 0.8
# as Cell Ranger writes it before the gene
OTHER_GENOME = re.compile(r"([A-Za-z][\w.-]*?)_+(?=[^_])")


def species_of_genes(names: Sequence[str]) -> np.ndarray | None:
    """Return the species of each gene, "" where it is not known; None for genes of one species alone."""
    species = np.array([_named_species(name) for name in names], dtype=object)
    by_spelling = not (species != "").any()
    if by_spelling:
        # B3GALT6 of human tells B3galt6 of mouse from C1orf159
        upper = {name for name in names if name.isupper()}
        is_mouse = [
            name not in upper and bool(MOUSE_SYMBOL.match(name) or name.upper() in upper)
            for name in names
        ]
        species[:] = [
            "human" if name in upper else "mouse" * mouse
            for name, mouse in zip(names, is_mouse, strict=True)
        ]
    elif np.isin(species, list(GENOMES)).any():  # then all genes have a genome before their name
        others = [match and match[1] for match in map(OTHER_GENOME.match, map(str, names))]
        species = np.where(species == "", [other or "" for other in others], species)
    nums = Counter(name for name in species.tolist() if name)
    least = max(MIN_GENES_OF_SPECIES, MIN_SHARE_OF_SPECIES * len(species))
    large = {name for name, num in nums.items() if num >= least}
    if len(large) < 2:
        return None
    if by_spelling:
        mouse = {
            name.upper() for name, of_gene in zip(names, species, strict=True) if of_gene == "mouse"
        }
        if len(mouse & upper) < MIN_BOTH_WAYS * min(len(mouse), len(upper)):
            return None
    return np.where(np.isin(species, list(large)), species, "")


def _named_species(name: str) -> str:
    """Return the species that a name states by its genome or Ensembl id; "" if it states none."""
    if match := re.match(ENSEMBL, name):
        prefix = match[0].rstrip("0123456789")
        return SPECIES_OF_PREFIX.get(prefix, prefix)
    return next((species for species, genome in GENOMES.items() if genome.match(name)), "")


def find_mixture(
    x: Rows, log_base: float | None, names: Sequence[str], species: str
) -> tuple[np.ndarray, np.ndarray, str] | None:
    """Find the genes and cells of one species in the expression of a file with `names` of genes; None for one species.

    Values are log1p to `log_base`, if they are logarithms. The species is the given one, if cells of it are there, and
    else that of most cells. Returns which genes are its own or of no known species, bool G; which cells are of the
    other species or droplets of both, bool N; and a text.
    """
    of_gene = species_of_genes(names)
    if of_gene is None:
        return None
    present = sorted(set(of_gene.tolist()) - {""})
    columns = np.stack([of_gene == name for name in present], axis=1).astype(np.float64)
    totals = np.concatenate(
        x.over_blocks(lambda _, block: linear_values(block, log_base) @ columns)
    )
    shares = totals / np.maximum(totals.sum(axis=1, keepdims=True), 1e-12)
    nums = (shares >= MIN_OWN_SHARE).sum(axis=0)
    chosen = (
        present.index(species)
        if species in present and nums[present.index(species)]
        else int(nums.argmax())
    )
    is_foreign = (shares[:, chosen] < MIN_OWN_SHARE) & (totals.sum(axis=1) > 0)
    num_cells = dict(zip(present, nums.tolist(), strict=True))
    num_own = num_cells.pop(present[chosen])
    num_both = int(is_foreign.sum()) - sum(num_cells.values())
    others = ", ".join(f"{num:,} of {name}" for name, num in num_cells.items())
    text = f"genes of {' and '.join(present)}: {present[chosen]} genes and {num_own:,} of {len(totals):,} cells are "
    text += f"used; {others} and {num_both:,} of several species are unknown and left out of all statistics"
    return (of_gene == present[chosen]) | (of_gene == ""), is_foreign, text
