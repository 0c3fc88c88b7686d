"""Matching the genes of a file to those of a model, by whatever names they have.

names: kinds of gene id and their parts, species. table: human genes. axes: names that are genes or cells, and the text
around genes. matching: the gene of a model to which each gene of a file is matched. overlap: files with too few genes
are refused, and one list of genes for several files.
"""

from scperformer.genes.axes import AXIS_SHARE, axis_shares, is_cell, is_gene, known_symbols, without_affixes
from scperformer.genes.matching import GeneMap, map_genes, name_columns
from scperformer.genes.names import (
    ENSEMBL,
    KIND_NAMES,
    all_parts,
    first_of_each,
    guess_species,
    id_kind,
    parts,
    repeated_note,
    require_named,
    require_unique,
)
from scperformer.genes.overlap import Overlap, find_panel, gene_maps, measure_overlap, require_overlap
from scperformer.genes.table import human_genes
