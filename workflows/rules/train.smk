"""The model, trained on the prepared reference."""

TRAINER = ["trainer=gpu" if WORKFLOW.cfg.gpu else "trainer=cpu"]  # a job without GPUs leaves those of its node alone
if WORKFLOW.cfg.gpu > 1:
    TRAINER += [f"trainer.devices={WORKFLOW.cfg.gpu}"]


rule train:
    """Train the model and, on the same cells, its baseline."""
    input:
        expand(PREPARED, reference=REFERENCES),
    output:
        directory(f"{OUT}/model"),
    log:
        f"{OUT}/logs/train.log",
    benchmark:
        f"{OUT}/benchmarks/train.tsv"
    params:
        label_key=verbatim(option("label_key", WORKFLOW.cfg.label_key)),
        overrides=verbatim(WORKFLOW.options["train"]),
        trainer=TRAINER,
        results=RESULT_VERSION,
    threads: 1
    resources:
        mem_mb=memory,
        gpu=WORKFLOW.cfg.gpu,
        runtime=24 * 60,  # after them, another job goes on from the last checkpoint
    shell:
        # resume and overwrite: an interrupted run goes on, but starts anew with other options or another reference
        "scperformer train {input:q} {params.label_key:q} output={output:q} resume=true overwrite=true"
        " {params.trainer:q} trainer.threads={threads} {params.overrides:q} > {log:q} 2>&1"
