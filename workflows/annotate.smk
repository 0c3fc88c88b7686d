"""The samples, each annotated by a job of its own; the cells of large ones in several (column `shares`)."""


rule predict:
    """Annotate one sample with the trained, or the given, model."""
    input:
        sample=lambda wildcards: SAMPLES[wildcards.sample]["path"],
        model=lambda wildcards: MODEL,
    output:
        ANNOTATED,
    wildcard_constraints:
        sample=one_of(name for name in SAMPLES if num_shares(name) == 1),
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
        mem_mb=flat_memory,
        runtime=lambda wildcards, input: minutes(input.sample) + 60,
    shell:
        "scperformer predict {input.sample:q} model_path={input.model:q} output={output:q}"
        " threads={threads} {params.overrides:q} > {log:q} 2>&1"


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


rule gather:
    """Put the shares of a large sample together."""
    input:
        sample=lambda wildcards: SAMPLES[wildcards.sample]["path"],
        model=lambda wildcards: MODEL,
        shares=lambda wildcards: shares_of(wildcards.sample),
    output:
        ANNOTATED,
    wildcard_constraints:
        sample=one_of(name for name in SAMPLES if num_shares(name) > 1),
    log:
        f"{OUT}/logs/predict/{{sample}}.log",
    benchmark:
        f"{OUT}/benchmarks/predict/{{sample}}.tsv"
    conda:
        "envs/scperformer.yaml"
    params:
        shares=lambda wildcards: option("shares", shares_of(wildcards.sample)),
        overrides=OVERRIDES.get("predict", []),
        config=resolved("predict"),
    threads: 1
    resources:
        mem_mb=flat_memory,
        runtime=lambda wildcards, input: minutes(input.sample) + 60,
    shell:
        "scperformer predict {input.sample:q} model_path={input.model:q} output={output:q}"
        " {params.shares:q} threads={threads} {params.overrides:q} > {log:q} 2>&1"
