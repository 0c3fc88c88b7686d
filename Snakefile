# Reference and samples in, annotated samples and a report out. How to use it: docs/workflow.md.
# Which data and which options: workflows/README.md. The rules, in the order of the data, are in workflows/rules/.
from snakemake.utils import min_version

min_version("9.0")


include: "workflows/rules/common.smk"
include: "workflows/rules/jobs.smk"
include: "workflows/rules/prepare.smk"
include: "workflows/rules/train.smk"
include: "workflows/rules/annotate.smk"
include: "workflows/rules/evaluate.smk"


rule annotate:
    default_target: True
    input:
        expand(ANNOTATED, sample=SAMPLES),
        REPORT,
        [] if WORKFLOW.samples else rules.pancreas.output,


rule all:
    input:
        rules.annotate.input,


onstart:
    mark_output()
    ask_slurm()
onsuccess:
    tell_results()
onerror:
    tell_results()
