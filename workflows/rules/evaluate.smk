"""Results: scores against the truth, if it is known, and the report."""

TRUTH = [option("truth_path", TRUTH_TABLES)] if TRUTH_TABLES else []


rule evaluate:
    """Compare the annotations with the truth, beside logistic regression on the same reference."""
    input:
        samples=expand(SETTLED, sample=WITH_TRUTH),
        truth=lambda wildcards: TRUTH_TABLES,
    output:
        metrics=f"{EVALUATION}/metrics.json",
        per_class=report(
            f"{EVALUATION}/per_class.csv",
            caption="../report/per_class.rst",
            category="Evaluation",
            labels={"table": "scores per label"},
        ),
        confusion=report(
            f"{EVALUATION}/confusion.csv",
            caption="../report/confusion.rst",
            category="Evaluation",
            labels={"table": "confusion matrix"},
        ),
    log:
        f"{OUT}/logs/evaluate.log",
    benchmark:
        f"{OUT}/benchmarks/evaluate.tsv"
    params:
        folder=lambda wildcards, output: os.path.dirname(output.metrics),
        files=[either(f"{SETTLED.format(sample=name)}/{name}") for name in WITH_TRUTH],
        truth=verbatim([option("truth_key", WORKFLOW.truth_key), *TRUTH]),
        overrides=verbatim(WORKFLOW.options["evaluate"]),
        results=RESULT_VERSION,
    threads: 1
    resources:
        mem_mb=memory,
        runtime=hours,
    shell:
        # overwrite: snakemake has already made the folder of its output files
        "shopt -s nullglob; scperformer evaluate {params.files} {params.truth:q} output={params.folder:q} overwrite=true"
        " {params.overrides:q} > {log:q} 2>&1"


rule report:
    """Make one HTML page about all samples."""
    input:
        samples=expand(SETTLED, sample=SAMPLES),
        evaluation=rules.evaluate.output if WITH_TRUTH else [],
    output:
        report(update(REPORT), caption="../report/report.rst", category="Annotation", labels={"page": "annotation report"}),
    log:
        f"{OUT}/logs/report.log",
    benchmark:
        f"{OUT}/benchmarks/report.tsv"
    params:
        files=[either(f"{SETTLED.format(sample=name)}/{name}") for name in SAMPLES],
        evaluation=[f"evaluation={EVALUATION}"] if WITH_TRUTH else [],
        overrides=verbatim(WORKFLOW.options["report"]),
        results=RESULT_VERSION,
    threads: 1
    resources:
        mem_mb=memory,
        runtime=hours,
    shell:
        "shopt -s nullglob; scperformer report {params.files} {params.evaluation:q} output={output:q} overwrite=true"
        " {params.overrides:q} > {log:q} 2>&1"
