"""A record of an annotation without a run."""

from collections.abc import Sequence

import numpy as np

from scperformer.adaptation.record import (
    InputRecord,
    ModelRecord,
    Record,
    Remark,
    RemarksRecord,
    RepeatsRecord,
    texts,
)
from scperformer.io.gene_overlap import measure_overlap


def record_of(
    labels: list[str], share: float = 1.0, remarks: Sequence[Remark] = (), **more
) -> Record:
    """The record of a model with some labels and 100 genes, of which a file has a `share`."""
    genes = [f"G{i}" for i in range(100)]
    names = genes[: round(100 * share)]
    model = ModelRecord(
        name="m",
        hash="a" * 64,
        path="m",
        labels=texts(labels),
        trained_on="r",
        label_key="k",
        num_cells=9,
        seed=0,
    )
    file = InputRecord(
        file="f",
        sha256="",
        source="X",
        kind="counts",
        log_base=np.nan,
        total=np.nan,
        relative=False,
        notes=texts([]),
    )
    overlap = measure_overlap(np.arange(len(names)), names, genes)
    repeats = RepeatsRecord(num_seen=10, num_cells=0)
    return Record(
        **{
            "model": model,
            "input": file,
            "genes": overlap,
            "repeats": repeats,
            "versions": {},
            "num_unknown": 0,
        },
        remarks=RemarksRecord.of(remarks),
        **more,
    )
