"""The samples, each annotated by a job of its own; of large ones, each share of the cells (column `shares`)."""


rule predict_share:
    """Call one of the shares of the cells of a large sample."""
    input:
        sample=lambda wildcards: SAMPLES[wildcards.sample]["path"],
        model=lambda wildcards: MODEL,
    output:
        temp(directory(SHARE)),
    log:
        f"{OUT}/logs/predict/{{sample}}.{{part}}-of-{{parts}}.log",
    benchmark:
        f"{OUT}/benchmarks/predict/{{sample}}.{{part}}-of-{{parts}}.tsv"
    conda:
        "envs/scperformer.yaml"
    params:
        overrides=OVERRIDES.get("predict", []),
        config=resolved("predict"),
    threads: 1
    resources:
        mem_mb=flat_memory,
        runtime=lambda wildcards, input: minutes(input.sample) // int(wildcards.parts) + 60,
    shell:
        "scperformer predict {input.sample:q} model_path={input.model:q} share={wildcards.part}/{wildcards.parts}"
        " output={output:q} threads={threads} {params.overrides:q} > {log:q} 2>&1"


rule predict:
    """Annotate one sample with the trained, or the given, model, or put its shares together."""
    input:
        sample=lambda wildcards: SAMPLES[wildcards.sample]["path"],
        model=lambda wildcards: MODEL,
        shares=lambda wildcards: shares_of(wildcards.sample),
    output:
        ANNOTATED,
    log:
        f"{OUT}/logs/predict/{{sample}}.log",
    benchmark:
        f"{OUT}/benchmarks/predict/{{sample}}.tsv"
    conda:
        "envs/scperformer.yaml"
    params:
        shares=lambda wildcards: [option("shares", shares)] if (shares := shares_of(wildcards.sample)) else [],
        overrides=OVERRIDES.get("predict", []),
        config=resolved("predict"),
    threads: 1
    resources:
        mem_mb=flat_memory,
        runtime=lambda wildcards, input: minutes(input.sample) + 60,
    shell:
        "scperformer predict {input.sample:q} model_path={input.model:q} output={output:q}"
        " {params.shares:q} threads={threads} {params.overrides:q} > {log:q} 2>&1"
