"""The samples: a job annotates one or several of them."""

# Models that are adapted to the genes and the depth of a sample, for all samples of one kind.
ADAPTED = option("adapted_folder", f"{OUT}/adapted")
DEVICE = "device=auto" if config["gpu"] else "device=cpu"  # a job without a GPU leaves those of its node alone
KEEP_GOING = ["keep_going=true", "failed_ok=true", ADAPTED]
if config["samples"] and any(described(name) for name in SAMPLES):
    KEEP_GOING.append(option("sample_sheet", config["samples"]))


rule predict:
    """Annotate the samples of a job; for a sample that cannot be annotated, write a file with the reason."""
    input:
        # ancient: `settle` sees which sample is newer than its annotation; here one would repeat all of its job.
        sample=ancient(lambda wildcards: [SAMPLES[name]["path"] for name in samples_of(wildcards.job)]),
        model=lambda wildcards: MODEL,
    output: temp(directory(f"{OUT}/predicted/{{job}}"))
    log: f"{OUT}/logs/predict/{{job}}.log"
    benchmark: f"{OUT}/benchmarks/predict/{{job}}.tsv"
    conda: "envs/scperformer.yaml"
    params:
        words=lambda wildcards, output: [
            option("outputs", [f"{output}/{name}.h5ad" for name in samples_of(wildcards.job)]),
            *KEEP_GOING,
        ],
        described=lambda wildcards: [described(name) for name in samples_of(wildcards.job)],
        device=DEVICE,
        overrides=OVERRIDES["predict"],
        config=resolved("predict"),
    resources: mem_mb=flat_memory, runtime=predict_minutes, gpu=min(config["gpu"], 1)
    shell: "scperformer predict {input.sample:q} model_path={input.model:q} {params.words:q} {params.device:q}"
        " threads={threads} {params.overrides:q} > {log:q} 2>&1"


rule settle:
    """Give a sample its own folder, with its annotation or SAMPLE.failed.json: all later steps look there."""
    input:
        sample=lambda wildcards: SAMPLES[wildcards.sample]["path"],
        model=lambda wildcards: MODEL,
        job=lambda wildcards: f"{OUT}/predicted/{JOB_OF[wildcards.sample]}",
    output: directory(SETTLED)
    localrule: True
    log: f"{OUT}/logs/settle/{{sample}}.log"
    conda: "envs/scperformer.yaml"
    params:
        made_of=lambda wildcards: [SAMPLES[wildcards.sample]["path"], MODEL],
        described=lambda wildcards: described(wildcards.sample),
        files=lambda wildcards, input: either(f"{input.job}/{wildcards.sample}"),
        config=resolved("predict"),
    shell: "shopt -s nullglob; mkdir -p {output:q} && mv {params.files} {output:q}/ 2> {log:q}"


rule deliver:
    """Move an annotated sample to its place, or fail with the reason why there is none."""
    input: SETTLED
    output: ANNOTATED
    localrule: True
    log: f"{OUT}/logs/deliver/{{sample}}.log"
    conda: "envs/scperformer.yaml"
    params: file=lambda wildcards, input: f"{input}/{wildcards.sample}"
    shell: "if [ -e {params.file:q}.failed.json ]; then tee {log:q} < {params.file:q}.failed.json >&2; exit 1; fi;"
        " ln {params.file:q}.h5ad {output:q} 2> {log:q} || cp {params.file:q}.h5ad {output:q} 2> {log:q}"
