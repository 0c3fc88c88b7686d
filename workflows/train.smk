"""The model, trained on the prepared reference."""

TRAINER = ["trainer=gpu" if config["gpu"] else "trainer=cpu"]  # a job without GPUs leaves those of its node alone
if config["gpu"] > 1:
    TRAINER += [f"trainer.devices={config['gpu']}"]


rule train:
    """Train the model and, on the same cells, its baseline."""
    input:
        PREPARED,
    output:
        directory(f"{OUT}/model"),
    log:
        f"{OUT}/logs/train.log",
    benchmark:
        f"{OUT}/benchmarks/train.tsv"
    conda:
        "envs/scperformer.yaml"
    params:
        label_key=option("label_key", config["label_key"]),
        overrides=OVERRIDES["train"],
        trainer=TRAINER,
        config=resolved("train", option("label_key", config["label_key"]), *TRAINER),
    threads: 1
    resources:
        mem_mb=memory,
        gpu=config["gpu"],
        runtime=24 * 60,
    shell:
        # resume and overwrite: an interrupted run goes on, but starts anew with other options or another reference
        "scperformer train {input:q} {params.label_key:q} output={output:q} resume=true overwrite=true"
        " {params.trainer:q} trainer.threads={threads} {params.overrides:q} > {log:q} 2>&1"
