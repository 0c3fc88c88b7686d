"""Files: every kind of input is recognised and opened safely, and the names of genes are matched.

- safety: damaged and unsafe files are refused
- hdf5_guard: HDF5 files on which libhdf5 hangs or crashes are refused
- writing: HDF5 files on a disk that may be full
- h5ad: h5ad files and zarr stores, in memory or with matrices on disk
- tenx: HDF5 files of 10x Genomics, and loom files
- mtx: MatrixMarket, with the names of genes and cells from other files
- tables: tables of text
- pickles: pickles, read in a child process without executing anything
- torch_files: files that torch has saved (.pt, .pth), read without executing anything
- read: the kind of an input, its cells and its checksum
- rows: matrices that are read block by block
- sheet: the sample sheet
- gene_names: kinds of gene id, compound names, species
- gene_table: human genes of HGNC, GENCODE and Ensembl
- axes: names that are genes or cells; prefixes and suffixes
- gene_matching: the genes of a file among the genes of a model
- gene_overlap: files with too few of a model's genes, panels, one list of genes for several files
- gene_lists: the genes of a panel
"""
