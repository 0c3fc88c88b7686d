"""The samples: a job annotates one or several of them."""

# Models that are adapted to the genes and the depth of a sample, for all samples of one kind.
ADAPTED = option("adapted_folder", f"{OUT}/adapted")
DEVICE = "device=auto" if WORKFLOW.cfg.gpu else "device=cpu"  # a job without a GPU leaves those of its node alone
SHEET = [option("sample_sheet", config["sample_sheet"])] if WORKFLOW.samples else []


rule predict:
    """Annotate the samples of a job; for a sample that cannot be annotated, write a file with the reason."""
    input:
        # ancient: `settle` sees which sample is newer than its annotation; here one would repeat all of its job.
        sample=ancient(lambda wildcards: [SAMPLES[name]["path"] for name in samples_of(wildcards.job)]),
        model=MODEL,
    output:
        temp(directory(f"{OUT}/predicted/{{job}}")),
    log:
        f"{OUT}/logs/predict/{{job}}.log",
    benchmark:
        f"{OUT}/benchmarks/predict/{{job}}.tsv"
    params:
        output=lambda wildcards, output: option("output", f"{output}/{{sample}}.h5ad"),
        model=lambda wildcards, input: [option("model_path", str(input.model))] if input.model else [],
        sheet=verbatim(SHEET),
        device=DEVICE,
        adapted=verbatim(ADAPTED),
        overrides=verbatim(WORKFLOW.options["predict"]),
    threads: 1
    resources:
        mem_mb=flat_memory,
        runtime=predict_minutes,
        gpu=min(WORKFLOW.cfg.gpu, 1),
    shell:
        "scperformer predict {input.sample:q} {params.model:q} {params.output:q} keep_going=ok"
        " {params.adapted:q} {params.sheet:q} {params.device:q} threads={threads} {params.overrides:q} > {log:q} 2>&1"


rule settle:
    """Give a sample its own folder, with its annotation or SAMPLE.failed.json: all later steps look there."""
    input:
        sample=lambda wildcards: SAMPLES[wildcards.sample]["path"],
        model=MODEL,
        job=lambda wildcards: f"{OUT}/predicted/{JOB_OF[wildcards.sample]}",
    output:
        directory(SETTLED),
    localrule: True
    log:
        f"{OUT}/logs/settle/{{sample}}.log",
    params:
        made_of=lambda wildcards: [SAMPLES[wildcards.sample]["path"], GIVEN_MODEL],
        described=lambda wildcards: described(wildcards.sample),
        files=lambda wildcards, input: either(f"{input.job}/{wildcards.sample}"),
        overrides=verbatim(WORKFLOW.options["predict"]),
        results=RESULT_VERSION,
    shell:
        "shopt -s nullglob; mkdir -p {output:q} && mv {params.files} {output:q}/ 2> {log:q}"


rule deliver:
    """Move an annotated sample to its place, or fail with the reason why there is none."""
    input:
        SETTLED,
    output:
        ANNOTATED,
    localrule: True
    retries: 0  # the reason stays
    log:
        f"{OUT}/logs/deliver/{{sample}}.log",
    params:
        file=lambda wildcards, input: f"{input}/{wildcards.sample}",
    shell:
        "if [ -e {params.file:q}.failed.json ]; then tee {log:q} < {params.file:q}.failed.json >&2; exit 1; fi;"
        " ln {params.file:q}.h5ad {output:q} 2> {log:q} || cp {params.file:q}.h5ad {output:q} 2> {log:q}"


if not WORKFLOW.samples:

    rule pancreas:
        """Annotate, evaluate and report the embedded cells of a pancreas without a model."""
        input:
            workflow.source_path("../../data/baron_pancreas.h5ad"),
        output:
            annotated=f"{OUT}/annotated/pancreas.h5ad",
            evaluation=directory(f"{EXAMPLE}/pancreas.evaluation"),
            report=f"{OUT}/pancreas.html",
        log:
            f"{OUT}/logs/pancreas.log",
        benchmark:
            f"{OUT}/benchmarks/pancreas.tsv"
        params:
            results=RESULT_VERSION,
        threads: 1
        resources:
            mem_mb=2000,
            runtime=10,
        shell:
            "(env -u SCPERFORMER_MODEL scperformer predict {input:q} output={output.annotated:q} device=cpu"
            " && scperformer evaluate {output.annotated:q} truth_key=cell_ontology_class output={output.evaluation:q}"
            " && scperformer report {output.annotated:q} evaluation={output.evaluation:q} output={output.report:q})"
            " > {log:q} 2>&1"
