"""The samples, each annotated by a job of its own."""


rule predict:
    """Annotate one sample with the trained, or the given, model."""
    input:
        sample=lambda wildcards: SAMPLES[wildcards.sample]["path"],
        model=lambda wildcards: MODEL,
    output:
        ANNOTATED,
    log:
        f"{OUT}/logs/predict/{{sample}}.log",
    benchmark:
        f"{OUT}/benchmarks/predict/{{sample}}.tsv"
    conda:
        "envs/scperformer.yaml"
    params:
        overrides=OVERRIDES.get("predict", []),
        config=resolved("predict"),
    threads: 1
    resources:
        mem_mb=memory,
        runtime=4 * 60,
    shell:
        "scperformer predict {input.sample:q} model_path={input.model:q} output={output:q}"
        " threads={threads} {params.overrides:q} > {log:q} 2>&1"
