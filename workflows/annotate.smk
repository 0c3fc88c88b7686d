"""The samples. A job annotates one or several of them; the cells of a huge one (column `shares`) are split into jobs."""

# Models that are adapted to the genes and the depth of a sample, for all samples of one kind.
ADAPTED = option("adapted_folder", f"{OUT}/adapted")
SPLIT = [name for name in SAMPLES if num_shares(name)]


rule predict:
    """Annotate the samples of a job; for a sample that cannot be annotated, write a file with the reason."""
    input:
        sample=lambda wildcards: [SAMPLES[name]["path"] for name in JOBS[wildcards.job]],
        model=lambda wildcards: MODEL,
    output: temp(directory(f"{OUT}/predicted/{{job}}"))
    log: f"{OUT}/logs/predict/{{job}}.log"
    benchmark: f"{OUT}/benchmarks/predict/{{job}}.tsv"
    conda: "envs/scperformer.yaml"
    params:
        words=lambda wildcards, output: [
            option("outputs", [f"{output}/{name}.h5ad" for name in JOBS[wildcards.job]]),
            *("keep_going=true", "error_files=true", ADAPTED),
        ],
        overrides=OVERRIDES.get("predict", []),
        config=resolved("predict"),
    resources: mem_mb=flat_memory, runtime=predict_minutes
    shell: "scperformer predict {input.sample:q} model_path={input.model:q} {params.words:q} threads={threads}"
        " {params.overrides:q} > {log:q} 2>&1"


rule deliver:
    """Move an annotated sample to its place, or fail with the reason why there is none."""
    input:
        sample=lambda wildcards: SAMPLES[wildcards.sample]["path"],
        model=lambda wildcards: MODEL,
        job=lambda wildcards: f"{OUT}/predicted/{JOB_OF[wildcards.sample]}",
    output: ANNOTATED
    wildcard_constraints: sample=any_of(JOB_OF)
    localrule: True
    log: f"{OUT}/logs/deliver/{{sample}}.log"
    conda: "envs/scperformer.yaml"
    params: annotated=lambda wildcards, input: f"{input.job}/{wildcards.sample}.h5ad", config=resolved("predict")
    shell: "if [ -e {params.annotated:q}.error ]; then tee {log:q} < {params.annotated:q}.error >&2; exit 1; fi;"
        " ln {params.annotated:q} {output:q} 2> {log:q} || cp {params.annotated:q} {output:q} 2> {log:q}"


use rule predict as predict_share with:
    input: sample=lambda wildcards: [SAMPLES[wildcards.sample]["path"]], model=lambda wildcards: MODEL
    output: temp(directory(SHARE))
    log: f"{OUT}/logs/predict/{{sample}}.{{part}}-of-{{parts}}.log"
    benchmark: f"{OUT}/benchmarks/predict/{{sample}}.{{part}}-of-{{parts}}.tsv"
    params:
        words=lambda wildcards, output: [
            *(f"share={wildcards.part}/{wildcards.parts}", option("output", output[0]), ADAPTED),
        ],


use rule predict as gather with:
    input:
        sample=lambda wildcards: [SAMPLES[wildcards.sample]["path"]],
        model=lambda wildcards: MODEL,
        shares=lambda wildcards: shares_of(wildcards.sample),
    output: ANNOTATED
    wildcard_constraints: sample=any_of(SPLIT)
    log: f"{OUT}/logs/predict/{{sample}}.log"
    benchmark: f"{OUT}/benchmarks/predict/{{sample}}.tsv"
    params:
        words=lambda wildcards, input, output: [
            *(option("shares", list(input.shares)), option("output", output[0]), ADAPTED),
        ],
