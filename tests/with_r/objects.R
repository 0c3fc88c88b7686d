# Makes objects as users of R have them, of the 10x folder `tenx` and the counts of antibodies in `adt.rds`.
suppressPackageStartupMessages({
  library(Seurat)
  library(SingleCellExperiment)
  library(DropletUtils)
})
set.seed(1)
quietly <- function(x) suppressWarnings(suppressMessages(x))
save_as <- function(object, name) saveRDS(object, paste0(name, ".rds"))

counts <- Read10X("tenx")
adt <- matrix(rpois(20 * ncol(counts), 50), 20, dimnames = list(paste0("ADT-", 1:20), colnames(counts)))

# The standard workflow of Seurat
object <- CreateSeuratObject(counts)
object$note <- NA_character_
object$group <- addNA(factor(rep_len(c("a", NA), ncol(object))))
object <- quietly(NormalizeData(object, verbose = FALSE))
object <- quietly(FindVariableFeatures(object, verbose = FALSE))
object <- quietly(ScaleData(object, verbose = FALSE))
object <- quietly(RunPCA(object, npcs = 10, verbose = FALSE))
object <- quietly(FindNeighbors(object, dims = 1:10, verbose = FALSE))
object <- quietly(FindClusters(object, verbose = FALSE))
object <- quietly(RunUMAP(object, dims = 1:10, n.neighbors = 10, verbose = FALSE))
save_as(object, "workflow")

deep <- NULL
for (depth in 1:3000) deep <- list(deep)
object@misc <- list(deep = deep, forms = list(5:1, sort(c(2.5, 1)), as.character(1:3), quote(f(x)), y ~ x, globalenv()))
object[["ADT"]] <- CreateAssayObject(counts = adt)
DefaultAssay(object) <- "ADT"
save_as(quietly(NormalizeData(object, normalization.method = "CLR", verbose = FALSE)), "adt_active")
DefaultAssay(object) <- "RNA"
if (requireNamespace("sctransform", quietly = TRUE)) {
  save_as(quietly(SCTransform(object, variable.features.n = 500, verbose = FALSE)), "sct")
}
emptied <- object
emptied@assays$RNA@counts <- matrix()
save_as(emptied, "counts_emptied")
save_as(object[["RNA"]], "assay")

# Bioconductor
sce <- read10xCounts("tenx")
save_as(sce, "no_colnames")
sce <- read10xCounts("tenx", col.names = TRUE)
rownames(sce) <- rowData(sce)$Symbol
altExp(sce, "ADT") <- SummarizedExperiment(list(counts = adt))
metadata(sce) <- list(1:10, deep)
save_as(sce, "sce")
save_as(swapAltExp(sce, "ADT", saved = "RNA"), "adt_main")
save_as(as.SingleCellExperiment(object), "converted")
for (kind in c("CsparseMatrix", "RsparseMatrix", "TsparseMatrix", "unpackedMatrix")) save_as(as(counts, kind), kind)
save_as(as.matrix(counts), "matrix")

# What is refused, with the lines that convert it
dir.create("refused")
dense <- as.matrix(counts)
save_as(as.data.frame(dense), "refused/data_frame")
save_as(data.frame(gene = rownames(dense), dense, check.names = FALSE), "refused/with_genes")
save_as(DataFrame(dense, row.names = rownames(dense)), "refused/DataFrame")
save_as(Biobase::ExpressionSet(dense), "refused/expression_set")
save_as(list(1, object), "refused/list")
save_as(list(a = 1, b = object), "refused/named_list")
save_as(counts > 0, "refused/logical")
mode(dense) <- "character"
save_as(dense, "refused/text")
if (requireNamespace("HDF5Array", quietly = TRUE)) {
  HDF5Array::saveHDF5SummarizedExperiment(sce[, 1:30], "refused/folder")
}
