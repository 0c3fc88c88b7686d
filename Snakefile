# Reference and samples in, annotated samples and a report out. How to use it: docs/workflow.md.
# Which data and which options: workflows/config.yaml. The rules, in the order of the data, are in workflows/.
import glob
import os
import shutil

from snakemake.utils import min_version

min_version("9.0")


configfile: f"{workflow.basedir}/workflows/config.yaml"


container: config["container"]


report: "workflows/report/workflow.rst"


include: "workflows/sheet.smk"
include: "workflows/common.smk"
include: "workflows/prepare.smk"
include: "workflows/train.smk"
include: "workflows/annotate.smk"
include: "workflows/evaluate.smk"


rule annotate:
    default_target: True
    input:
        expand(ANNOTATED, sample=SAMPLES),
        REPORT,


rule all:
    input:
        rules.annotate.input,


onstart:
    mark_outdir()


onsuccess:
    tell_results()


onerror:
    tell_results()
    # The reason why a sample could not be annotated may go away without a change to any file: try it again next time.
    for reason in glob.glob(f"{glob.escape(OUT)}/samples/*/*.failed.json"):
        shutil.rmtree(os.path.dirname(reason))
    shutil.rmtree(f"{OUT}/predicted", ignore_errors=True)
