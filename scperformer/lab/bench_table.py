"""The results of a bench: a table with a row for each run, its summary over seeds, and a picture."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from scperformer.base.errors import one_line
from scperformer.base.messages import escape_formula
from scperformer.base.outputs import new_file
from scperformer.base.pictures import colour_of, png

RUNS = "runs.csv"
BASELINE = "baseline_macro_f1"
# The score that is compared: the first that all runs have. A linear branch would hide the effect of an encoder.
SCORES = {
    "test_macro_f1": "macro-F1 on test cells",
    "encoder_macro_f1": "macro-F1 of the encoder alone",
    "val_macro_f1": "macro-F1 on held-out cells",
}
COSTS = ("cpu_seconds", "gpu_seconds", "peak_gib", "gpu_peak_gib", "parameters", "gflops")
MAX_ERROR_LENGTH = 80  # characters of a printed error
# Of a run: `options` as on the command line, size and time of its `files`, its `results`, and its `error` or "".
BenchRecord = dict[str, Any]


def write_results(folder: Path, records: dict[str, BenchRecord]) -> int:
    """Write the tables and the picture of a bench, and print its summary; return the number of failed runs."""
    runs = runs_table(records)
    summary = summary_of(
        runs, dict.fromkeys(name for record in records.values() for name in record["options"])
    )
    written = {
        RUNS: runs.assign(error=runs["error"].map(escape_formula)),
        "summary.csv": summary.reset_index(),
    }
    for name, table in written.items():
        with new_file(folder / name, overwrite=True) as temporary:
            table.to_csv(temporary, index=False, float_format="%.9g")
    if len(summary):
        with new_file(folder / "bench.png", overwrite=True) as temporary:
            temporary.write_bytes(draw(summary))
        means = summary.drop(columns=[name for name in summary if name.endswith("_sd")]).map(
            "{:.3g}".format
        )
        for name in means.columns.drop("runs"):
            means[name] += [f" ± {sd:.1g}" if sd > 0 else "" for sd in summary[f"{name}_sd"]]
        print(means.to_string(), end="\n\n")
    failed = runs[runs["error"] != ""]
    for name, error in zip(failed["run"], failed["error"], strict=True):
        print(f"{name}: {one_line(error)[:MAX_ERROR_LENGTH]}")
    print(f"{len(runs)} runs, {len(failed)} failed: {folder / RUNS}", flush=True)
    return len(failed)


def runs_table(records: dict[str, BenchRecord]) -> pd.DataFrame:
    """Return a row for each run: its folder, options, results, and its error ("": none)."""
    parts = [
        pd.DataFrame([record[part] for record in records.values()])
        for part in ("options", "results")
    ]
    table = pd.concat(parts, axis=1)
    table.insert(0, "run", list(records))
    return table.assign(error=[record["error"] for record in records.values()])


def summary_of(runs: pd.DataFrame, options: Iterable[str]) -> pd.DataFrame:
    """Return mean and standard deviation over runs that differ in their seed alone, the best score first."""
    done = runs[runs["error"] == ""]
    score = next((name for name in SCORES if name in done and done[name].notna().all()), None)
    if done.empty or score is None:
        return pd.DataFrame()
    chosen = [name for name in options if name != "seed" and done[name].nunique(dropna=False) > 1]
    text = [", ".join(filter(None, row)) or "all" for row in done[chosen].fillna("").to_numpy()]
    groups = done.groupby(pd.Series(text, done.index, name=", ".join(chosen) or "options"))
    means = groups[[name for name in (score, BASELINE, *COSTS) if name in done]]
    table = means.mean().join(means.std().add_suffix("_sd"))
    table.insert(0, "runs", groups.size())
    return table.sort_values(score, ascending=False)


def draw(summary: pd.DataFrame) -> bytes:
    """Return a PNG of the score against time and memory, with standard deviations."""
    score = next(name for name in SCORES if name in summary)
    on_gpu = "gpu_seconds" in summary and summary["gpu_seconds"].notna().all()
    costs = {"gpu_seconds": "GPU seconds", "gpu_peak_gib": "peak GPU memory, GiB"}
    if not on_gpu:
        costs = {"cpu_seconds": "CPU seconds", "peak_gib": "peak memory, GiB"}
    figure = Figure(figsize=(9.6, 4.2), dpi=150, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, (cost, text) in zip(panels, costs.items(), strict=True):
        for number, (name, row) in enumerate(summary.fillna(0).iterrows()):
            where = row[cost], row[score]
            bars = {"xerr": row[f"{cost}_sd"], "yerr": row[f"{score}_sd"]}
            panel.errorbar(*where, **bars, fmt="o", color=colour_of(number), capsize=2, label=name)
        panel.axhline(
            summary[BASELINE].mean(), color="#777777", linestyle="--", label="logistic regression"
        )
        panel.set(xlabel=text, ylim=(0, 1))
        panel.set_xlim(left=0)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(SCORES[score])
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    return png(figure)
