"""The labelled reference: made from the embedded data when there is none, then filtered and normalised."""


rule example:
    """Split the embedded PBMC data into a labelled reference and three samples with their truth apart."""
    input:
        script=f"{workflow.basedir}/data/make_example.py",
        cells=f"{workflow.basedir}/data/pbmc3k.h5ad",  # the script finds it beside itself
    output:
        f"{EXAMPLE}/reference.h5ad",
        f"{EXAMPLE}/samples.tsv",
        expand(f"{EXAMPLE}/{{name}}.h5ad", name=EXAMPLE_SAMPLES),
        expand(f"{EXAMPLE}/truth/{{name}}.csv", name=EXAMPLE_SAMPLES),
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
        reference=REFERENCE,
        overrides=OVERRIDES["preprocess"],
        config=resolved("preprocess"),
    threads: 1
    resources:
        mem_mb=memory,
        runtime=60,
    shell:
        "scperformer preprocess {input:q} output={output:q} {params.overrides:q} > {log:q} 2>&1"
