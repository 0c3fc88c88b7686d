"""What each epoch of a training came to, as a table in the run folder."""

import csv
from pathlib import Path

from scperformer.outputs import new_file

TABLE = "metrics.csv"
COLUMNS = ("epoch", "train_loss", "val_loss", "val_macro_f1", "val_accuracy", "seconds")

Epoch = dict[str, float]  # a number for each of COLUMNS; epochs count from 1


def write_history(epochs: list[Epoch], folder: Path) -> None:
    """Write `metrics.csv`, a row per epoch, in place of an earlier one."""
    with new_file(folder / TABLE, overwrite=True) as temporary, temporary.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows([f"{epoch[name]:.6g}" for name in COLUMNS] for epoch in epochs)


def read_history(folder: Path) -> list[Epoch]:
    """The epochs that `write_history` has written."""
    with (folder / TABLE).open(newline="") as file:
        return [{name: float(text) for name, text in row.items()} for row in csv.DictReader(file)]
