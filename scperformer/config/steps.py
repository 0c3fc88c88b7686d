"""The options of every step: one dataclass each, whose comments are the text of docs/configuration.md."""

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from scperformer.base.errors import InputError
from scperformer.config import groups
from scperformer.config.groups import (
    ABOVE_ZERO,
    AUTO,
    BELOW_ONE,
    LINE,
    NAME,
    ONE_OR_MORE,
    SEED,
    SHARE,
    THREADS,
    ZERO_OR_MORE,
    Options,
    Rule,
    choice,
    option,
    require,
)

ONTOLOGY: Rule = (
    lambda source: source in ("packaged", "none") or source.endswith((".obo", ".csv", ".tsv")),
    "packaged, none, or a file in .obo, .csv or .tsv",
)
SOURCE: Rule = (
    lambda source: source in ("auto", "X", "raw") or source.startswith("layers/"),
    "auto, X, raw or layers/NAME",
)


@dataclass(kw_only=True)
class _FileOptions(Options):
    """Options of the steps that take files."""

    prefix = ""
    takes_one: ClassVar[bool] = False  # whether the step takes exactly one file

    inputs: list[str] = field(default_factory=list)  # the files, given as plain words of the command
    overwrite: bool = False  # replace an output of this step that exists

    def __post_init__(self) -> None:
        super().__post_init__()
        num = len(self.inputs)
        if num == 0 or (self.takes_one and num > 1):
            expected = "exactly one file" if self.takes_one else "at least one file"
            remedy = f"name it; 'scperformer {self.word()} --help' shows examples"
            raise InputError(f"{num} input files" if num else "no input file", expected, remedy)


@dataclass(kw_only=True)
class ExpressionOptions(_FileOptions):
    """Options that replace the detection of a file's content."""

    orientation: str = choice("auto", "cells_by_genes", "genes_by_cells")  # of text tables; see docs/inputs.md#files
    source: str = option("auto", SOURCE)  # place of the expression: X, raw or layers/NAME
    input_kind: str = choice("auto", "counts", "linear", "log1p")  # kind of the values; linear: TPM, corrected counts
    input_total: float | None = option(None, ABOVE_ZERO)  # total of a cell before the logarithm, such as 10000
    input_base: str = choice("auto", "e", "2", "10")  # base of the logarithm
    # species of the genes; if it is not the model's, genes are matched by orthologs; see docs/inputs.md#genes
    species: str = choice("auto", "human", "mouse")


@dataclass(kw_only=True)
class _ModelOptions(ExpressionOptions):
    """Options of the steps that apply a model to cells."""

    model_path: str | None = None  # a folder or the name of a model; null: $SCPERFORMER_MODEL, else the packaged model
    # exact: a gene of the file is found in the model by the same name alone, as other tools do; matched: also by ids,
    # case, previous symbols and more; see docs/inputs.md#genes
    genes: str = choice("matched", "exact")
    # least share of the model's informative expression that the genes of a file must carry; see docs/inputs.md#genes
    min_overlap: float = option(0.2, SHARE)


@dataclass(kw_only=True)
class CheckConfig(_ModelOptions):
    """Describe files, and check whether a model can annotate them."""

    label_key: str | None = None  # check instead whether `train` would accept these labels
    # also look for likely doublets (scanpy.pp.scrublet), in up to 20,000 cells; takes some seconds
    doublets: bool = False
    output: str | None = None  # a file for the findings as JSON, for programs


@dataclass(kw_only=True)
class PreprocessConfig(ExpressionOptions):
    """Filter, normalise and log-transform a file."""

    takes_one = True
    data: groups.DataConfig = field(default_factory=groups.DataConfig)
    model_path: str | None = None  # align the genes to those of this model
    output: str | None = None  # null: INPUT.prepared.h5ad beside the input


@dataclass(kw_only=True)
class NetworkConfig(ExpressionOptions):
    """Options of the steps that train a network: where they write, the network, and how it is trained.

    The default is the network of conf/model/performer.yaml, with the presets that it chooses.
    """

    output: str | None = None  # null: INPUT.model (`train`) or INPUT.encoder (`pretrain`) beside the first input
    resume: bool = False  # continue an interrupted run
    # seed of every random choice: split, weights, projections, order, masked values, dropout
    seed: int = option(0, SEED)
    init: str | None = None  # a model folder (also of `train`) whose encoder is the start; see docs/pretraining.md
    data: groups.DataConfig = field(default_factory=groups.DataConfig)
    tokens: groups.TokensConfig = field(default_factory=groups.TokensConfig)
    model: groups.ModelConfig = field(
        default_factory=lambda: groups.ModelConfig(
            depth=2, positions="coexpression", queries="cell", feedforward=False, dropout=0.5
        )
    )
    attention: dict[str, Any] = field(default_factory=lambda: {"name": "favor"})  # with the options of the mechanism
    head: groups.HeadConfig = field(  # not used by `pretrain`
        default_factory=lambda: groups.HeadConfig(name="weighted", hidden=[64, 64], dropout=0.3)
    )
    conditions: groups.ConditionsConfig = field(default_factory=groups.ConditionsConfig)
    optim: groups.OptimConfig = field(
        default_factory=lambda: groups.OptimConfig(lr=5e-3, weight_decay=0.05, label_smoothing=0.05, gradient_clip=0.0)
    )
    trainer: groups.TrainerConfig = field(default_factory=lambda: groups.TrainerConfig(batch_size=128))
    logger: groups.LoggerConfig = field(default_factory=groups.LoggerConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        no_conflict = not self.conditions.on or self.tokens.unexpressed == "skip"
        expected = "none with tokens.unexpressed=full, all or memory, for which unmeasured genes are not known"
        require(no_conflict, "conditions", "on", expected)
        without_vectors = self.model.positions == "gene2vec" and self.model.gene2vec_path is None
        if self.model.encoder and without_vectors and self.init is None:
            expected = "a file of gene vectors for model.positions=gene2vec"
            raise InputError("no model.gene2vec_path", expected, "name the file, or choose model.positions=gene")


@dataclass(kw_only=True)
class TrainConfig(NetworkConfig):
    """Train a model on a labelled reference."""

    label_key: str  # obs column with the labels; the last of `label_keys`, if they are given
    # obs columns with labels of several levels, the coarsest first, such as [lineage,type,subtype]
    label_keys: list[str] = field(default_factory=list)
    # a CSV or TSV file with a child and its parent in each row; see docs/labels.md#levels
    label_tree: str | None = None
    # source of Cell Ontology ids: packaged (a table of ours), none, a CL file (.obo), or a table of labels and ids
    ontology: str = option("packaged", ONTOLOGY)
    # obs column with the batch, donor or study of each cell: whole ones are held out to see what holds for new cells
    batch_key: str | None = None
    # train a model for each study and join them; auto: with several files; true: also for the batches of one file
    studies: str = choice("auto", "true", "false")
    # of several studies: a CSV or TSV file with a label and its joint label in each row; see docs/training.md
    label_map: str | None = None
    ontology_key: str | None = None  # obs column with ids of the labels; null: LABEL_KEY_ontology_term_id, if it exists
    # tissue of the reference, such as blood; the model card and `models list` show it
    tissue: str | None = option(None, LINE)
    # cells of the reference in the model folder, with which it adapts to the genes and the depth of a file; 0: cells
    # that are simulated from the profiles of the labels instead
    keep_cells: int = option(20000, ZERO_OR_MORE)
    # full: the model card also shows the accuracy to expect on files with fewer genes or a lower depth, and whether the
    # cells of each label are flagged as unknown by a model without this label; takes some minutes
    card: str = choice("short", "full")
    # files of cells without labels, such as the query's: `model=performer` also learns the vectors of genes from
    # these, from 20,000 cells at most; `source` and the like apply to these files as well
    unlabelled: list[str] = field(default_factory=list)
    # part of the encoder of `init` that is trained further; last_layer: with the final norm; head: none of it
    init_mode: str = choice("full", "last_layer", "head")

    def __post_init__(self) -> None:
        self.studies = self.studies.lower()  # Hydra turns the word true into True
        super().__post_init__()
        is_coexpression = self.model.positions == "coexpression"
        is_weighted = self.head.name == "weighted"
        # Beside `init`, model=performer may be the default only: the model of `init` replaces it.
        is_settled_later = self.init is not None and is_coexpression
        head_fits = not self.model.encoder or is_coexpression == is_weighted or is_settled_later
        expected = "weighted with model=performer or pooled, or another head with model=tiny, base or scbert"
        require(head_fits, "head.name", self.head.name, expected)
        last = self.label_keys[-1] if self.label_keys else self.label_key
        require(self.label_key == last, "label_key", self.label_key, f"{last}, the last of label_keys, or left out")
        has_one_tree = self.label_tree is None or not self.label_keys
        require(has_one_tree, "label_tree", self.label_tree, "no label_tree beside label_keys, which make a tree, too")
        has_studies = self.studies == "true" or (self.studies == "auto" and len(self.inputs) > 1)
        require(has_studies or self.label_map is None, "label_map", self.label_map, "several files, or studies=true")
        uses_unlabelled = self.model.encoder and is_coexpression
        expected = "no files without model=performer or pooled"
        require(uses_unlabelled or not self.unlabelled, "unlabelled", self.unlabelled, expected)
        expected = "no files beside init, from which the vectors of genes are taken"
        require(self.init is None or not self.unlabelled, "unlabelled", self.unlabelled, expected)
        require(self.keep_cells > 0 or self.card == "short", "card", self.card, "short with keep_cells=0")
        if self.init is None:
            require(self.init_mode == "full", "init_mode", self.init_mode, "init=FOLDER beside it")


@dataclass(kw_only=True)
class PretrainConfig(NetworkConfig):
    """Train an encoder on unlabelled cells to predict masked expression."""

    # a text file with the genes of the encoder, one id a line; null: genes that `data.min_cells` cells express
    genes_path: str | None = None
    masking: groups.MaskingConfig = field(default_factory=groups.MaskingConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.model.encoder, "model.encoder", self.model.encoder, "true with pretrain, which trains the encoder")
        fits = self.model.positions != "coexpression" or self.model.queries == "cell"
        require(fits, "model.queries", self.model.queries, "cell with pretrain and model.positions=coexpression")
        require(self.model.depth > 0, "model.depth", self.model.depth, "1 or more with pretrain")
        panel = self.conditions.genes
        require(panel is None, "conditions.genes", panel, "genes_path with pretrain")
        both = self.init is not None and self.genes_path is not None
        require(not both, "genes_path", self.genes_path, "no genes_path beside init, which has its genes")
        # Only `train` measures the memory of its steps.
        require(self.trainer.batch_size != AUTO, "trainer.batch_size", AUTO, "a whole number above 0 with pretrain")


@dataclass(kw_only=True)
class PredictConfig(_ModelOptions):
    """Annotate the cells of one or more files."""

    # further models on the same cells, each with the prefix KEY_NAME; model_path=[A,B] stands for model_path=A and
    # other_models=[B]; see docs/models.md#several-models-on-the-same-cells
    other_models: list[str] = field(default_factory=list)
    # a name in .h5ad, .zarr, .csv, .tsv (both also .gz) or .parquet, in which {sample} stands for the name of each of
    # several files, such as calls/{sample}.csv; null: SAMPLE.annotated.h5ad beside each file
    output: str | None = None
    outputs: list[str] = field(default_factory=list)  # with several files: a name for each of them, in their order
    output_dir: str | None = None  # a folder for all outputs, SAMPLE.annotated.h5ad
    # a sample sheet, a table with the column path; its further columns, such as condition, become columns of obs
    sample_sheet: str | None = None
    # continue an interrupted run: files that it has finished stay as they are, and one that it has begun goes on
    resume: bool = False
    replace_annotation: bool = False  # replace an annotation of the same prefix that a file has
    # true: annotate the other files when one is refused, for which SAMPLE.failed.json holds the reason; the exit code
    # is then 2, and with ok 0
    keep_going: str = choice("false", "true", "ok")
    key_added: str = option("scperformer", NAME)  # prefix of everything that is written
    batch_size: int = option(64, ONE_OR_MORE)  # cells per batch on a GPU; on a CPU the length of the cells decides
    threads: int = option(1, THREADS)  # CPU threads of torch, each with a batch of its own: more need more memory
    device: str = choice("auto", "cpu", "cuda")  # where the network runs; auto: a GPU that torch can use, else the CPU
    precision: str = choice("32-true", "bf16-mixed")  # bf16-mixed: on a GPU or a CPU that computes in bfloat16
    # expected false-positive rate of the unknown flag: share of cells like the reference's that get it; 0: off
    false_alarms: float = option(0.05, BELOW_ONE)
    # how far a file is from the reference as a whole changes its calls, confidences and unknown flags; false: it does
    # not; see docs/trust.md#cells-of-another-study
    shift: str = choice("auto", "false")
    # cells with a lower confidence are flagged as unknown, too, unless a parent in the model's label tree reaches it
    min_confidence: float = option(0.0, SHARE)
    # also give each cell a set of labels that contains the true one with probability 1 - alpha; see docs/trust.md
    alpha: float | None = option(None, (lambda alpha: 0 < alpha < 1, "a number between 0 and 1"))
    # the only labels that can occur; see docs/labels.md#constraints
    allow_labels: list[str] = field(default_factory=list)
    deny_labels: list[str] = field(default_factory=list)  # labels that cannot occur
    # shares of labels that confidences assume; em: estimated on all cells of the file, on which calls then depend
    prior: str = choice("reference", "em")
    # also one label per cluster, by majority: an obs column, or auto (many small clusters); see docs/labels.md#clusters
    clusters: str | None = None
    # of models of CellTypist, as there: prob_match also joins all labels whose own probability is above `p_thres`; a
    # cell without such a label is Unassigned, and unknown
    mode: str = choice("best_match", "prob_match")
    p_thres: float = option(0.5, SHARE)  # of `mode=prob_match`
    # also CellTypist's majority voting: the most frequent label of each of many small clusters, or of those in the
    # column `clusters`
    majority_voting: bool = False
    # of `majority_voting`: a cluster in which the share of that label is lower is Heterogeneous
    min_prop: float = option(0.0, SHARE)
    # also mark cells of low quality and score doublets, both among the cells of the file; see docs/labels.md#quality
    quality: bool = False
    # source of ontology ids and label tree instead of the model, as in `train`
    ontology: str | None = option(None, ONTOLOGY)
    # fit the model anew to the genes and the depth of a file, on the cells that it stores; auto: if a file has below
    # 98 % of the informative expression or below 75 % of the depth; see docs/panels.md
    adapt: str = choice("auto", "true", "false")
    # the file of a whole sample, for files with some of its cells: depth and batch effect are then those of the whole,
    # and so are labels and probabilities; see docs/trust.md#parts-of-a-sample
    condition_of: str | None = None
    adapted_folder: str | None = None  # keep adapted models in this folder, and take them from there; null: nowhere

    def __post_init__(self) -> None:
        self.adapt = self.adapt.lower()  # Hydra turns the word true into True
        self.shift = self.shift.lower()
        self.keep_going = self.keep_going.lower()
        self.mode = self.mode.replace(" ", "_")  # as CellTypist writes it
        if self.model_path is not None and self.model_path.startswith("[") and self.model_path.endswith("]"):
            self.model_path, *more = [name.strip(" '\"") for name in self.model_path[1:-1].split(",")]
            self.other_models = [*more, *self.other_models]
        super().__post_init__()
        num = len(self.inputs)
        expected = "a name with {sample} for several files, or output_dir=FOLDER, which takes all of them"
        require(num == 1 or "{sample}" in (self.output or "{sample}"), "output", self.output, expected)
        if self.outputs:
            require(self.output is None, "output", self.output, "no output beside outputs")
            require(len(self.outputs) == num, "outputs", self.outputs, f"{num} outputs, one per input file")
        named = self.output is not None or bool(self.outputs)
        require(self.output_dir is None or not named, "output_dir", self.output_dir, "no output or outputs beside it")
        is_name = "/" not in self.key_added and self.key_added not in (".", "..")
        require(is_name, "key_added", repr(self.key_added), "a name without '/'")
        changes_probabilities = bool(self.allow_labels or self.deny_labels) or self.prior == "em"
        expected = "no alpha beside allow_labels, deny_labels or prior=em: its sets are for probabilities as they are"
        require(self.alpha is None or not changes_probabilities, "alpha", self.alpha, expected)


@dataclass(kw_only=True)
class AdaptConfig(_ModelOptions):
    """Adapt a model to the genes and the depth of a file, or to a list of genes."""

    takes_one = True
    output: str | None = None  # null: INPUT.adapted beside the input

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.model_path is not None, "model_path", self.model_path, "the model, as the first word")


@dataclass(kw_only=True)
class EvaluateConfig(_FileOptions):
    """Compare annotations with the true labels, beside logistic regression."""

    truth_key: str  # obs column, or column of `truth_path`, with the true labels
    # tables of text, one for each file, when the true labels are not in the files; the first column names the cells
    truth_path: list[str] | None = None
    truth_map: str | None = None  # a CSV or TSV file with two columns: a true label, and the label as which it counts
    # ontology: a true label that the model lacks is compared with the model's labels that are types of it in the Cell
    # Ontology, or with that of which it is a type; names: only labels of the same name are the same
    match: str = choice("ontology", "names")
    key_added: str = "scperformer"  # prefix of the annotation to read
    output: str | None = None  # a folder; null: FIRST_INPUT.evaluation beside it

    def __post_init__(self) -> None:
        super().__post_init__()
        has_all = self.truth_path is None or len(self.truth_path) == len(self.inputs)
        require(has_all, "truth_path", self.truth_path, f"{len(self.inputs)} tables, one per input file")


@dataclass(kw_only=True)
class ReportConfig(_FileOptions):
    """Make one self-contained HTML page about annotated files."""

    evaluation: str | None = None  # the folder that `evaluate` has written
    key_added: str = "scperformer"  # prefix of the annotation to read
    output: str | None = None  # null: report.html beside the first input
    max_cells: int = option(12000, (lambda num: num >= 10, "10 or more"))  # cells on the map; of more, a random sample
    sample_key: str | None = None  # obs column with the sample of each cell; null: each file is a sample
    seed: int = option(0, SEED)  # seed of the map and of the choice of its cells


@dataclass(kw_only=True)
class ExplainConfig(ExpressionOptions):
    """Find the genes on which the calls of an annotated file depend."""

    takes_one = True
    model_path: str | None = None  # null: the model of the calls at its recorded place, else as for `predict`
    key_added: str = "scperformer"  # prefix of the annotation to read
    output: str | None = None  # a folder; null: INPUT.explanation beside the input
    label: str | None = None  # explain the logit of this label in all cells; null: of the label of each cell
    cells: Any = 200  # cells of each label, a random sample, or all
    all_genes: bool = False  # list ribosomal and mitochondrial genes and MALAT1 in the page and its tables, too
    seed: int = option(0, SEED)  # seed of the choice of cells and of the genes that the deletion test draws

    def __post_init__(self) -> None:
        super().__post_init__()
        is_number = isinstance(self.cells, int) and not isinstance(self.cells, bool) and self.cells >= 1
        require(is_number or self.cells == "all", "cells", self.cells, "a whole number above 0, or all")


@dataclass(kw_only=True)
class AnalyzeConfig(_ModelOptions):
    """Analyse the attention of a trained model on real cells."""

    takes_one = True
    analysis: str = choice("spectrum", "approximation")  # the first plain word
    output: str | None = None  # a folder; null: INPUT.spectrum or INPUT.approximation beside the input
    num_cells: int = option(8, ONE_OR_MORE)  # number of cells, a random sample of those that express any gene
    max_tokens: int = option(2048, (lambda num: num >= 2, "2 or more"))  # most tokens used of a cell, a random sample
    # approximation: values of the option that is the size of a mechanism
    sizes: list[int] = option([16, 32, 64, 128, 256, 512], (lambda sizes: min(sizes, default=0) >= 1, "1 or more each"))
    seed: int = option(0, SEED)  # seed of the choice of cells and tokens, and of the draws
    threads: int = option(1, THREADS)  # CPU threads of torch


# Options of `models` that only some of its actions have.
OF_IMPORT = ("genes", "labels", "reference", "label_key", "batch", "name", "species", "tissue", "licence")


@dataclass(kw_only=True)
class ModelsConfig(_FileOptions):
    """List models, describe one, or import one."""

    action: str = choice("list", "show", "import")  # the first plain word
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

    def __post_init__(self) -> None:
        Options.__post_init__(self)  # not that of _FileOptions: the number of inputs depends on the action
        wanted = {
            "list": [],
            "show": ["a name"],
            "import": ["a model folder, archive or file"],  # or, without a name, several
        }[self.action]
        several = self.action == "import" and self.name is None and len(self.inputs) > 1
        if len(self.inputs) != len(wanted) and not several:
            found = f"{len(self.inputs)} words after 'models {self.action}'"
            expected = " and ".join(wanted) or "none"
            raise InputError(found, expected, "'scperformer models --help' shows examples")
        for name in OF_IMPORT:
            is_used = getattr(self, name) is None or self.action == "import"
            require(is_used, name, getattr(self, name), f"no {name} with 'models {self.action}'")
        has_both = (self.reference is None) == (self.label_key is None)
        require(has_both, "label_key", self.label_key, "reference=FILE and label_key=COLUMN together")


@dataclass(kw_only=True)
class WorkflowConfig(Options):
    """Run the workflow: a reference and many samples in, annotated samples and a report out."""

    # Null: the value of `configfile`, or of WORKFLOW_DEFAULTS.
    prefix = ""

    samples: str | None = None  # the sample sheet, as the first word; see docs/workflow.md#your-own-data
    # labelled files to train on; several are studies, see docs/training.md#several-studies
    reference: list[str] | None = None
    label_key: str | None = None  # obs column of the reference with the labels; null: cell_type
    model_path: str | None = None  # a trained model or its name instead of a reference: nothing is trained
    outdir: str | None = None  # folder for everything that is written; null: results
    predict_jobs: int | None = option(None, ONE_OR_MORE)  # the largest number of jobs for small samples; null: 8
    # GPUs of the training job, with which each prediction asks for one, too; null: 0
    gpu: int | None = option(None, (lambda num: 0 <= num <= 16, "a number from 0 to 16"))
    container: str | None = None  # an image for Apptainer; see docs/workflow.md#containers
    configfile: str | None = None  # a YAML file with these keys and `overrides`; `--config FILE` is the same
    snakemake: list[str] = field(default_factory=list)  # words for snakemake, given after `--`, such as -- -n --cores 4


_STEPS: tuple[type[Options], ...] = (
    CheckConfig,
    PreprocessConfig,
    PretrainConfig,
    TrainConfig,
    PredictConfig,
    AdaptConfig,
    EvaluateConfig,
    ReportConfig,
    ExplainConfig,
    AnalyzeConfig,
    ModelsConfig,
    WorkflowConfig,
)
SCHEMAS: dict[str, type] = {step.word(): step for step in _STEPS}  # the dataclass of each step

# Keys of a YAML file for the workflow, beside `overrides`.
WORKFLOW_KEYS = tuple(entry.name for entry in fields(WorkflowConfig) if entry.name not in ("configfile", "snakemake"))

# What the workflow does where neither the command nor a file says otherwise.
WORKFLOW_DEFAULTS = {"label_key": "cell_type", "outdir": "results", "predict_jobs": 8, "gpu": 0}
WORKFLOW_STEPS = ("preprocess", "train", "predict", "evaluate", "report")  # the steps that `overrides` may name

# The version of what the steps make of the same files and options. It is raised when a default or a method changes
# results that users have: the workflow then repeats its steps. A new option whose default changes nothing leaves it.
RESULT_VERSION = 1
