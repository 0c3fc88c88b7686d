"""What `scperformer --help` and `scperformer STEP --help` print."""

import re
import textwrap
from importlib.metadata import version

from scperformer.base.errors import InputError
from scperformer.cli.words import FIRST_WORDS

# For each step its usage, its purpose and its examples; empty lines separate the steps. A test checks the examples.
TEXTS = """\
check FILE...
describe files, and check if a model can annotate them
  scperformer check sample.h5ad
  scperformer check *.h5ad model_path=my_model
  scperformer check filtered_feature_bc_matrix counts.csv.gz sample.loom
  scperformer check reference.h5ad label_key=cell_type
  scperformer check sample.h5ad output=check.json       # also as JSON, for programs

preprocess FILE
filter, normalise and log-transform a file
  scperformer preprocess reference.h5ad output=prepared.h5ad
  scperformer preprocess sample.h5ad source=layers/counts data.min_genes=200
  scperformer preprocess sample.h5ad model_path=my_model    # genes aligned to the model's

pretrain FILE...
train an encoder on unlabelled cells
  scperformer pretrain corpus/*.h5ad output=my_encoder
  scperformer pretrain a.h5ad b.h5ad model=tiny tokens=scbert trainer.max_epochs=10 output=my_encoder
  scperformer pretrain a.h5ad genes_path=genes.txt masking.share=0.3
  scperformer pretrain more.h5ad init=my_encoder output=my_second_encoder

train REFERENCE label_key=COLUMN
train a model on a labelled reference
  scperformer train reference.h5ad label_key=cell_type output=my_model
  scperformer train reference.h5ad label_key=cell_type model=tiny trainer.max_epochs=5
  scperformer train reference.h5ad label_key=cell_type -m model=performer,tiny seed=0,1
  scperformer train reference.h5ad label_key=cell_type output=my_model resume=true
  scperformer train reference.h5ad label_key=cell_type data.split=group data.split_key=donor
  scperformer train reference.h5ad label_key=cell_type init=my_encoder init_mode=last_layer
  scperformer train reference.h5ad label_key=cell_type conditions.genes=panel.txt      # a model for one panel
  scperformer train reference.h5ad label_keys=[lineage,cell_type]       # a tree: unsafe calls back off
presets: model=performer|pooled|tiny|base|scbert  tokens=continuous|bins|scbert  attention=favor|softmax
         head=weighted|mean|cls|conv  trainer=auto|cpu|gpu|ddp  logger=all|csv|none|wandb|mlflow

predict FILE...
annotate the cells of files
  scperformer predict sample.h5ad                       # packaged model -> sample.annotated.h5ad
  scperformer predict sample.h5ad model_path=my_model output=out.h5ad
  scperformer predict run1.h5ad run2.h5ad model_path=my_model min_confidence=0.5
  scperformer predict runs/*.h5ad output_dir=annotated keep_going=true    # go on if some files are refused
  scperformer predict runs/*.h5ad output_dir=annotated resume=true        # go on after an interruption
  scperformer predict sample.h5ad clusters=leiden deny_labels=[DC,Platelet]   # also a label of each cluster
  scperformer predict runs/*.h5ad output='calls/{sample}.csv'             # tables
  scperformer predict panel.h5ad model_path=my_model adapt=false   # the model as it is, whatever the file lacks

adapt MODEL FILE
adapt a model to the genes and the depth of a file
  scperformer adapt my_model sample.h5ad output=shallow_model
  scperformer adapt my_model panel.txt output=panel_model          # one gene a line

evaluate ANNOTATED... truth_key=COLUMN
compare with true labels, beside logistic regression
  scperformer evaluate sample.annotated.h5ad truth_key=cell_type output=evaluation
  scperformer evaluate a.h5ad b.h5ad truth_key=cell_type truth_path=[a.csv,b.csv] output=evaluation

report ANNOTATED...
make one HTML page about annotated files
  scperformer report sample.annotated.h5ad output=report.html
  scperformer report a.h5ad b.h5ad evaluation=evaluation output=report.html

explain ANNOTATED
find the genes on which calls depend
  scperformer explain sample.annotated.h5ad                        # -> sample.annotated.explanation/
  scperformer explain sample.annotated.h5ad cells=all output=why
  scperformer explain sample.annotated.h5ad label=NK               # what speaks for or against this label

analyze spectrum|approximation FILE
analyse the attention of a trained model
  scperformer analyze spectrum sample.h5ad model_path=my_model          # -> sample.spectrum/
  scperformer analyze spectrum sample.h5ad num_cells=20 max_tokens=1024 output=spectrum
  scperformer analyze approximation sample.h5ad model_path=my_model sizes=[64,256,1024]

models list | show | import
list models, or import one from somewhere else
  scperformer models list
  scperformer models show pbmc3k
  scperformer models import a_model.zip                  # checked; then model_path=NAME finds it
  scperformer models import Immune_All_Low.pkl           # also a model of CellTypist
  scperformer models import their_model output=shared    # for SCPERFORMER_MODELS=shared

workflow SAMPLES
annotate many samples with Snakemake, and make one report
  scperformer workflow samples.tsv reference=reference.h5ad label_key=cell_type
  scperformer workflow samples.tsv model_path=my_model -- -n          # show the jobs and run none
  scperformer workflow --config my.yaml -- --cores 16                 # words after -- are for snakemake
  scperformer workflow samples.tsv model_path=my_model -- --profile my_cluster"""
PROGRAM = """\
scperformer {version}: cell-type annotation of single-cell data

usage: scperformer STEP files... [option=value ...]

{steps}

examples:
  scperformer predict sample.h5ad                       # annotate with the packaged model
  scperformer train reference.h5ad label_key=cell_type output=my_model
  scperformer predict sample.h5ad model_path=my_model output=out.h5ad

  scperformer STEP --help       examples and options of one step
  scperformer STEP --cfg job    every option of a step with the value it would have
  scperformer STEP --config F   options from a YAML file, as for the workflow
  scperformer --plugin F STEP   an attention mechanism in a Python file: docs/own_mechanism.md
  scperformer STEP ... -m a=1,2 run a step once per value (a sweep)"""
HELP = {text.partition(" ")[0]: text for text in TEXTS.split("\n\n")}
WIDTH = 116  # characters of a line of the list of options
INDENT = 34  # characters before the meaning of an option
MAX_DEFAULT_LENGTH = 40  # characters


def program_text() -> str:
    """Return the usage of the program, with one line for each step."""
    steps = "\n".join("  {:<40}{}".format(*text.replace(" | ", "|").splitlines()) for text in HELP.values())
    return PROGRAM.format(version=version("scperformer"), steps=steps)


def help_text(step: str, group: str | None = None) -> str:
    """Return the usage, examples and options of a step, or the options of one of its groups.

    Raises
    ------
    InputError
        The step has no such group.
    """
    from scperformer.config.options import groups_of, option_texts

    groups = groups_of(step)
    if group is not None and group not in groups:
        raise InputError(f"'{group}' after --help", f"one of {', '.join(groups)}", f"try 'scperformer {step} --help'")
    lines = []
    if group is None:
        usage, about, examples = HELP[step].split("\n", 2)
        lines += [f"scperformer {usage} [option=value ...]", f"  {about}", "", "examples:", examples, ""]
    lines.append("options (with their defaults):" if group is None else f"options of {group} (with their defaults):")
    for option in option_texts(group or step, FIRST_WORDS.get(step)):
        default = "... (required)" if option.default == "required" else option.default[:MAX_DEFAULT_LENGTH]
        start = f"  {option.name}={default}".ljust(INDENT - 2) + "  "
        meaning = re.sub(r";? ?see docs/\S+", "", option.meaning)  # an installed package has no docs folder
        lines += textwrap.wrap(meaning, WIDTH, initial_indent=start, subsequent_indent=" " * INDENT)
    if group is None and groups:
        lines += ["", f"more options: scperformer {step} --help GROUP, with GROUP one of {', '.join(groups)}"]
    return "\n".join(lines)
