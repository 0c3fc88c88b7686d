"""The options of importing a model."""

from dataclasses import dataclass

from scperformer.config.options import LINE, FileOptions, option


@dataclass(kw_only=True)
class ImportOptions(FileOptions):
    """What a model from somewhere else does not say of itself."""

    # import: what the model is to be called; null: its own name, or that of the file
    name: str | None = option(None, LINE)
    # import: a text file with the genes of a model that does not name them, one in each line, or an h5ad file
    genes: str | None = None
    labels: str | None = None  # import: a file with the labels of a model that does not name them
    # import: a file of labelled cells, with which a model of another tool gets calibrated confidences, novelty, an
    # expected accuracy, and adapts to panels and depth
    reference: str | None = None
    label_key: str | None = None  # import: the obs column of `reference` with the labels
    # import: the batch as which cells are read by a model of scvi-tools that encodes batches
    batch: str | None = option(None, LINE)
    species: str | None = option(None, LINE)  # import: of the model's genes; null: as its genes look
    tissue: str | None = option(None, LINE)  # import: of the model's cells
    licence: str | None = option(None, LINE)  # import: of the model
    output: str | None = None  # null: $SCPERFORMER_MODELS, else `scperformer/models` in the user's data folder
