"""Gene names: which names are genes, and the gene of a model that each gene of a file is.

In reading order: `names` (kinds of gene id, compound names, species), `table` (the human genes of HGNC, GENCODE and
Ensembl), `axes` (whether names are genes or cells; prefixes and suffixes), `matching` (the genes of a file among those
of a model), `overlap` (files with too few of a model's genes; panels; one list of genes for several files).
"""

from scperformer.genes.axes import AXIS_SHARE, axis_shares, is_cell, is_gene, without_affixes
from scperformer.genes.matching import GeneMap, map_exactly, map_genes, name_columns
from scperformer.genes.names import (
    ENSEMBL,
    KIND_NAMES,
    first_of_each,
    guess_species,
    id_kind,
    ids_and_symbols,
    repeated_note,
    require_named,
)
from scperformer.genes.overlap import (
    MIN_PANEL,
    Overlap,
    find_panel,
    map_genes_of_files,
    measure_overlap,
    require_overlap,
)
from scperformer.genes.table import human_genes
