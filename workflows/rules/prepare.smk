"""The labelled reference: made from the embedded data when there is none, then filtered and normalised."""

if not WORKFLOW.samples:

    rule example:
        """Split the embedded PBMC data into a labelled reference and three samples with their truth apart."""
        input:
            script=workflow.source_path("../../data/make_example.py"),
            cells=workflow.source_path("../../data/pbmc3k.h5ad"),
        output:
            f"{EXAMPLE}/reference.h5ad",
            f"{EXAMPLE}/samples.tsv",
            expand(f"{EXAMPLE}/{{name}}.h5ad", name=EXAMPLE_SAMPLES),
            expand(f"{EXAMPLE}/truth/{{name}}.csv", name=EXAMPLE_SAMPLES),
        log:
            f"{OUT}/logs/example.log",
        benchmark:
            f"{OUT}/benchmarks/example.tsv"
        params:
            folder=lambda wildcards, output: os.path.dirname(output[0]),
            label_key=verbatim(WORKFLOW.cfg.label_key),
        threads: 1
        resources:
            mem_mb=2000,
            runtime=10,
        shell:
            "python -P {input.script:q} {params.folder:q} --cells {input.cells:q} --label-key {params.label_key:q} > {log:q} 2>&1"


rule prepare:
    """Filter, normalise and log-transform a labelled file."""
    input:
        lambda wildcards: REFERENCES[wildcards.reference],
    output:
        PREPARED,
    log:
        f"{OUT}/logs/prepare/{{reference}}.log",
    benchmark:
        f"{OUT}/benchmarks/prepare/{{reference}}.tsv"
    params:
        reference=lambda wildcards: REFERENCES[wildcards.reference],
        overrides=verbatim(WORKFLOW.options["preprocess"]),
        results=RESULT_VERSION,
    threads: 1
    resources:
        mem_mb=memory,
        runtime=hours,
    shell:
        "scperformer preprocess {input:q} output={output:q} {params.overrides:q} > {log:q} 2>&1"
