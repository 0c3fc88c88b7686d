"""Files: every kind of input is recognised and opened safely, and the names of genes are matched.

- axes: The names on an axis of a matrix: whether they are genes or cells, and gene names with a prefix or suffix.
- gene_lists: Lists of genes, such as a panel's: a text file, a column of a table, or the panel of Xenium in JSON.
- gene_matching: Match the genes of a file to the genes of a model, by any names, with the help of a table of human
  genes.
- gene_names: Names of genes: kinds of gene id, compound names, species, and repeated names.
- gene_overlap: Gene overlap between files and a model, a panel or each other.
- gene_table: The table of human genes in the package: ids, current and former symbols, mouse orthologs.
- h5ad: Read h5ad files into memory or with matrices on disk; write h5ad files. A zarr store is opened in the same
  way.
- hdf5_guard: Open an HDF5 file only after a child process has inspected it: libhdf5 hangs or crashes on some
  damaged files.
- mtx: Read a matrix in the MatrixMarket format, and the names of its genes and cells from two files beside it.
- pickles: Pickles, read in a child process without executing anything: functions and classes stay names.
- read: Read cells from every kind of input: h5ad, 10x, mtx, loom, zarr and tables. The content shows the kind.
- rows: Read a matrix of cells block by block, from memory or from disk, so that it may be larger than memory.
- safety: Refuse inputs that are damaged, refer to other files, contain pickled objects, or have invalid matrices or
  tables.
- sheet: The sample sheet of the workflow and of `predict`: a row for each sample, with its path and columns about
  it.
- tables: Read tables of text: recognise the delimiter and the orientation; refuse tables without names or with
  other values.
- tenx: Read HDF5 files of 10x Genomics, as Cell Ranger 2 and later versions write them, and loom files.
- torch_files: Read files that torch has saved (.pt, .pth) without executing anything: by `torch.load` with
  `weights_only`.
- writing: Write HDF5 files so that a full disk, a limit on file sizes or Ctrl-C raises an error like any other.
"""
