"""The options of annotation: of `predict`, and of the steps that annotate cells to compare with."""

from dataclasses import dataclass

from scperformer.base.messages import name_problem
from scperformer.config.options import (
    BELOW_ONE,
    NAME,
    ONE_OR_MORE,
    ONTOLOGY,
    SHARE,
    THREADS,
    TissueOptions,
    choice,
    option,
    require,
)


@dataclass(kw_only=True)
class AnnotationOptions(TissueOptions):
    """How a model is applied to cells, and which labels they get."""

    key_added: str = option(
        "scperformer", "prefix of all entries; a new one keeps an earlier annotation", NAME
    )
    overwrite: bool = option(
        False, "replace an existing output, and an earlier annotation of this prefix in the cells"
    )
    batch_size: int = option(
        64, "cells per batch on a GPU; lower it if GPU memory is short", ONE_OR_MORE
    )
    threads: int | None = option(
        None,
        "CPU cores; null: all that are free for the process, up to 8 or $OMP_NUM_THREADS",
        THREADS,
    )
    device: str = choice(
        "auto", "cpu", "cuda", help="device of the network; auto: a usable GPU, else the CPU"
    )
    precision: str = choice(
        *("auto", "32-true", "tf32", "bf16-mixed"),
        help="auto: on a GPU bf16-mixed, else tf32, if 999 of 1,000 cells of the file get the labels of 32-true",
    )
    unknown_fpr: float = option(
        0.05,
        "expected false-positive rate of the unknown flag; more to find new types, 0 for none",
        BELOW_ONE,
    )
    shift: str = choice(
        *("auto", "genes", "false"),
        help="correction of the batch effect of the file: auto by gene, and within labels if query and reference share "
        "most of them; genes by gene alone; see docs/trust.md#cells-of-another-study",
    )
    min_confidence: float | None = option(
        None,
        "for fewer but safer labels: cells below this confidence fall back to a parent label that reaches it, "
        "otherwise to unknown; if null, 0.5 for profiles of a tissue, and 0 for a model",
        SHARE,
    )
    relabel: str = choice(
        *("auto", "false"),
        help="auto: cells of clusters that resemble a type without a label are unknown, T cells may get the label of "
        "another type of T cells, and without a model fine types are cut at gaps (docs/tissues.md#fine-types); false: "
        "labels stay; see docs/trust.md#clusters-to-check",
    )
    alpha: float | None = option(
        None,
        "prediction sets with the true label in 1 - alpha of the cells; see docs/trust.md",
        (lambda alpha: 0 < alpha < 1, "a number between 0 and 1"),
    )
    batch_key: str | None = option(
        None,
        "obs column of batches to correct separately; see docs/trust.md#several-batches-in-a-file",
    )
    allow_labels: list[str] = option(
        [], "for sorted samples: the only possible labels; see docs/labels.md#constraints"
    )
    deny_labels: list[str] = option([], "labels that cannot occur in the tissue")
    clusters: str | None = option(
        None,
        "obs column of clusters to label, too, or auto: many small ones, with markers_output about one for each type; "
        "see docs/labels.md#clusters",
    )
    markers_output: str | None = option(
        None,
        "a new table of the clusters, with calls, marker genes and an empty column `name` for `curate`: .tsv or .csv "
        "(also .gz) or .xlsx, with several files clusters/{sample}.tsv; see docs/labels.md#names-of-clusters",
    )
    umap: bool = option(
        False,
        "add a UMAP of the embedding (obsm X_umap; in .rds an attribute), for cell browsers; overwrite=true "
        "replaces an old one",
    )
    ontology: str | None = option(
        None,
        "for models without a tree: source of ontology ids and label tree, as in `train`",
        ONTOLOGY,
    )
    adapt: str = choice(
        *("auto", "true", "false"),
        help="refit the model to the genes and depth of the file; auto: below 99 % of the informative expression or "
        "below 75 % of the depth of the reference; see docs/panels.md",
    )
    full_sample: str | None = option(
        None, "for a subset of a sample, the file of the whole; see docs/trust.md#parts-of-a-sample"
    )
    adapted_folder: str | None = option(
        None, "for many files of one panel: a folder that keeps refitted models"
    )

    @property
    def adapts(self) -> bool:
        return self.adapt != "false"

    @property
    def finds_shift(self) -> bool:
        """Whether the distribution shift is estimated."""
        return self.shift != "false"

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = "no batch_key beside shift=false, which corrects nothing"
        require(self.finds_shift or self.batch_key is None, "batch_key", self.batch_key, expected)
        is_name = (
            "/" not in self.key_added
            and self.key_added not in (".", "..")
            and not name_problem(self.key_added)
        )
        require(
            is_name, "key_added", repr(self.key_added), "a name without '/' or control characters"
        )
        expected = "no alpha beside allow_labels or deny_labels: its sets are for probabilities as they are"
        require(
            self.alpha is None or not (self.allow_labels or self.deny_labels),
            "alpha",
            self.alpha,
            expected,
        )


@dataclass(kw_only=True)
class PredictConfig(AnnotationOptions):
    """Annotate the cells of one or more files."""

    output: str | None = option(
        None,
        ".h5ad, .zarr, .xlsx, .rds (a data.frame of R), .csv or .tsv (both also .gz); with several files {sample} "
        "stands for the name of each, as in calls/{sample}.csv; if null, SAMPLE.annotated.h5ad beside each file",
    )
    types: str | None = option(
        None,
        "a list of marker genes of cell types, by which a model is made for each file; see docs/markers.md",
    )
    output_dir: str | None = option(None, "a folder for all outputs, SAMPLE.annotated.h5ad")
    sample_sheet: str | None = option(
        None,
        "a table with the columns path, sample (the name in outputs) and others, which are added to obs",
    )
    resume: bool = option(False, "continue an interrupted run; finished files stay as they are")
    keep_going: str = choice(
        *("false", "true", "ok"),
        help="true: go on if a file is refused, write the reason to SAMPLE.failed.json, and exit with code 2; ok: the "
        "same with exit code 0",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("output", "markers_output"):
            value = getattr(self, name)
            is_distinct = len(self.inputs) == 1 or value is None or "{sample}" in value
            instead = ", or output_dir=FOLDER for all of them" if name == "output" else ""
            require(is_distinct, name, value, f"a name with {{sample}} for several files{instead}")
        has_umap = (".h5ad", ".zarr", ".rds")
        can_have = self.output is None or self.output.endswith(has_umap)
        require(
            can_have or not self.umap,
            "output",
            self.output,
            f"one of {', '.join(has_umap)} beside umap=true",
        )
        if self.types is not None:
            expected = "no model_path and no batch_key beside it, but perhaps tissue=NAME for all other types"
            require(
                self.model_path is None and self.batch_key is None, "types", self.types, expected
            )
            # the list decides, and its cells are of the file itself
            self.relabel = self.shift = "false"
        has_one = self.output_dir is None or self.output is None
        require(has_one, "output_dir", self.output_dir, "no output beside it")
