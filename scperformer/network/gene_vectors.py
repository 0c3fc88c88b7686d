"""A user's table of gene vectors, such as gene2vec's: one line per gene, its symbol and its numbers."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from scperformer.errors import InputError

log = logging.getLogger(__name__)

MIN_SHARE = 0.1  # of the model's genes; with fewer, the table has other names or another species


def read_gene_vectors(path: str | Path, genes: Sequence[str], dim: int) -> np.ndarray:
    """Read vectors of genes from a text file: float32, len(genes) x dim; genes that are not in it get zeros.

    Parameters
    ----------
    path
        Text: a gene and `dim` numbers in each line, separated by white space. A first line with two numbers (how
        many genes, how long the vectors), as word2vec writes it, is skipped.
    genes
        Names of the model's genes.
    dim
        Length of the vectors.

    Raises
    ------
    InputError
        No such file, a line of another length or with text in place of a number, or too few of the genes.

    Source
    ------
    Du et al. 2019, BMC Genomics 20:82 (gene2vec).
    """

    def unusable(found: str, expected: str) -> InputError:
        remedy = "name another table with model.gene2vec_path or choose model.positions=gene"
        return InputError(f"gene vectors '{path}' with {found}", expected, remedy)

    index = {gene: i for i, gene in enumerate(genes)}
    vectors = np.zeros((len(genes), dim), dtype=np.float32)
    found: set[str] = set()
    other, repeated = "", 0
    try:
        with open(path, encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                name, *numbers = line.split() or [""]
                if not name or (number == 1 and name.isdigit() and len(numbers) == 1):
                    continue
                if len(numbers) != dim:
                    raise unusable(f"{len(numbers)} numbers in line {number}", f"{dim}, as model.dim={dim}")
                if name not in index:
                    other = name
                    continue
                try:
                    with np.errstate(over="ignore"):
                        vectors[index[name]] = numbers
                except ValueError as error:
                    expected = f"a gene and {dim} numbers in each line"
                    raise unusable(f"text in place of a number for '{name}'", expected) from error
                repeated += name in found
                found.add(name)
    except OSError as error:
        raise unusable(f"a file that cannot be read ({error.strerror})", "a text file") from error
    except UnicodeDecodeError as error:
        raise unusable("bytes that are not text", "a text file") from error
    if not np.isfinite(vectors).all():
        raise unusable("numbers that are not finite", "finite numbers")
    if len(found) < MIN_SHARE * len(genes):
        examples = f"(the model has e.g. '{genes[0]}', the file '{other}')" if genes else ""
        raise unusable(f"{len(found)} of the model's {len(genes)} genes", f"a tenth of them {examples}")
    if repeated:
        log.warning("genes that occur more than once in %s: %d; the last line counts", path, repeated)
    log.info("gene vectors: %d of %d genes in %s; the others get zeros", len(found), len(genes), path)
    return vectors
