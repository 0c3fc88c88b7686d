"""The samples: each annotated by a job of its own; where there are many small ones, several by one job; the cells of
a huge one by several jobs (column `shares`)."""


rule predict:
    """Annotate one sample with the trained, or the given, model."""
    input:
        sample=lambda wildcards: SAMPLES[wildcards.sample]["path"],
        model=lambda wildcards: MODEL,
    output:
        ANNOTATED,
    wildcard_constraints:
        sample=one_of(name for name in SAMPLES if num_shares(name) == 1 and name not in JOB_OF),
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


rule predict_together:
    """Annotate several small samples in one program, which takes longer to start than to annotate one of them."""
    input:
        sample=lambda wildcards: [SAMPLES[name]["path"] for name in TOGETHER[wildcards.first]],
        model=lambda wildcards: MODEL,
    output:
        temp(directory(f"{OUT}/together/{{first}}")),
    wildcard_constraints:
        first=one_of(TOGETHER),
    log:
        f"{OUT}/logs/predict_together/{{first}}.log",
    benchmark:
        f"{OUT}/benchmarks/predict_together/{{first}}.tsv"
    conda:
        "envs/scperformer.yaml"
    params:
        outputs=lambda wildcards, output: option(
            "outputs", [f"{output}/{name}.h5ad" for name in TOGETHER[wildcards.first]]
        ),
        overrides=OVERRIDES.get("predict", []),
        config=resolved("predict"),
    threads: 1
    resources:
        mem_mb=flat_memory,
        runtime=lambda wildcards, input: sum(map(minutes, input.sample)) + 60,
    shell:
        # Samples that cannot be annotated fail the rule `deliver`, each for itself; anything else fails all of them here.
        "scperformer predict {input.sample:q} model_path={input.model:q} {params.outputs:q} keep_going=true"
        " threads={threads} {params.overrides:q} > {log:q} 2>&1 || grep -q 'files that cannot be annotated' {log:q};"
        " mkdir -p {output:q}"


rule deliver:
    """Put a sample that was annotated together with others in its place."""
    input:
        sample=lambda wildcards: SAMPLES[wildcards.sample]["path"],
        model=lambda wildcards: MODEL,
        together=lambda wildcards: f"{OUT}/together/{JOB_OF[wildcards.sample]}",
    output:
        ANNOTATED,
    wildcard_constraints:
        sample=one_of(JOB_OF),
    localrule: True
    log:
        f"{OUT}/logs/predict/{{sample}}.log",
    conda:
        "envs/scperformer.yaml"
    params:
        log=lambda wildcards: f"{OUT}/logs/predict_together/{JOB_OF[wildcards.sample]}.log",
        annotated=lambda wildcards, input: f"{input.together}/{wildcards.sample}.h5ad",
        overrides=OVERRIDES.get("predict", []),
        config=resolved("predict"),
    shell:
        # the lines of the log that are about this sample
        "SAMPLE={input.sample:q} awk '{{line = $0; sub(/^(error|warning): /, \"\")}}"
        " index($0, ENVIRON[\"SAMPLE\"] \": \") == 1 {{print line}}' {params.log:q} > {log:q};"
        " [ -e {params.annotated:q} ];"
        " ln {params.annotated:q} {output:q} 2> /dev/null || cp {params.annotated:q} {output:q}"


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
