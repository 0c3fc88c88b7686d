"""The labelled reference: made from the embedded data when there is none, then filtered and normalised."""


rule example:
    """Split the PBMC data inside scanpy into a labelled reference and two samples with their truth apart."""
    input:
        script=f"{workflow.basedir}/data/make_example.py",
    output:
        multiext(f"{EXAMPLE}/", "reference.h5ad", "sample_a.h5ad", "sample_b.h5ad", "samples.tsv"),
        multiext(f"{EXAMPLE}/truth/", "sample_a.csv", "sample_b.csv"),
    log:
        f"{OUT}/logs/example.log",
    benchmark:
        f"{OUT}/benchmarks/example.tsv"
    conda:
        "envs/scperformer.yaml"
    params:
        folder=lambda wildcards, output: os.path.dirname(output[0]),
        label_key=config["label_key"],
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    shell:
        "python {input.script:q} {params.folder:q} --label-key {params.label_key:q} > {log:q} 2>&1"


rule prepare:
    """Filter, normalise and log-transform the reference."""
    input:
        lambda wildcards: REFERENCE,
    output:
        PREPARED,
    log:
        f"{OUT}/logs/prepare.log",
    benchmark:
        f"{OUT}/benchmarks/prepare.tsv"
    conda:
        "envs/scperformer.yaml"
    params:
        overrides=OVERRIDES.get("preprocess", []),
        config=resolved("preprocess"),
    threads: 1
    resources:
        mem_mb=memory,
        runtime=60,
    shell:
        "scperformer preprocess {input:q} output={output:q} {params.overrides:q} > {log:q} 2>&1"
