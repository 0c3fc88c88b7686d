"""Time and memory of whole commands, ours and other tools', on cells drawn from real files.

    python benchmarks/speed.py jobs table.md --celltypist PYTHON --threads 1 2
    python benchmarks/speed.py jobs table.md --python OTHER/.venv/bin/python
    python benchmarks/speed.py commands pbmc3k.h5ad cell_type table.md
    python benchmarks/speed.py commands pbmc3k.h5ad cell_type table.md --methods linear --cells 10000 --stored csc
    python benchmarks/speed.py celltypist PYTHON table.md --cells 10000

`jobs`: what users do, large and small, on cells of the embedded data; how often `predict` and `check` read the matrix,
and how many bytes. `--python` runs the commands of another version, which trains its own model.

`commands`: each method is trained on the file. Each run is a new process, measured from its start to the written file,
including imports. The methods take turns, so that the load of the machine affects all of them alike. Medians over the
rounds and ratios to the first method are written as Markdown. Files of cells (8 GB for a million cells) are temporary.

`celltypist`: PYTHON makes a model of 98 labels and 6,639 genes, the sizes of CellTypist's immune models: the labels of
PBMC 3k, each split at random. Scores, genes, time and memory are compared with the imported model.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import scanpy as sc
from machine import in_new_process, machine, resample, run
from panel import as_options
from scipy.sparse import csr_matrix

import scperformer as scp
from scperformer.io.gene_table import human_genes

RIVALS = Path(__file__).with_name("rivals.py")
DATA = Path(__file__).parents[1] / "data" / "pbmc3k.h5ad"
MODELS: dict[str, list[str]] = {  # options of `scperformer train`
    "linear": ["experiment=linear"],
    "default": [],
    "base": ["model=base", "model.linear=false", "trainer.max_epochs=1"],
    "scbert": ["model=scbert", "model.positions=gene", "data.min_cells=0", "trainer.max_epochs=1"],
}
# most cells of methods that take minutes for more
MOST_CELLS = {"base": 2_638, "scbert": 16, "performer-pytorch": 16}
# cells of each label: training 17 million parameters takes hours for 2,638 cells
FEW_TO_LEARN = {"scbert": 4}
METHODS = [*MODELS, "logistic regression", "celltypist", "performer-pytorch", "check", "train"]
JOB_CELLS = 100_000
PANEL = 4, 0.3  # every so many genes, at this share of the counts
NUM_LABELS = 98
NUM_GENES = 6_639
NUM_COMPARED = 2_638  # cells whose scores are compared


def words_of(method: str, sample: Path, folder: Path, arguments: argparse.Namespace) -> list[str]:
    """The command of a method for a file of cells; it writes into the folder."""
    ours = [sys.executable, "-m", "scperformer"]
    output = folder / arguments.output
    if method == "check":
        return [*ours, "check", str(sample)]
    if method == "train":
        label = f"label_key={arguments.label_key}"
        return [
            *ours,
            "train",
            str(sample),
            label,
            f"output={output}",
            "logger=none",
            "overwrite=true",
        ]
    if method in MODELS:
        model = f"model_path={folder / method}"
        return [
            *ours,
            "predict",
            str(sample),
            model,
            f"output={output}",
            "overwrite=true",
            "min_overlap=0",
        ]
    python = arguments.celltypist if method == "celltypist" else sys.executable
    return [
        python,
        str(RIVALS),
        "annotate",
        method,
        str(sample),
        str(folder / f"{method}.pkl"),
        str(output),
    ]


def write_few(source: str, label_key: str, each: int, path: Path) -> None:
    """Write the first cells of each label."""
    adata = ad.read_h5ad(source)
    adata[
        adata.obs.groupby(label_key, observed=True).cumcount().to_numpy() < each
    ].copy().write_h5ad(path)


def learn(method: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Train the model of a method, if it has one."""
    if method in MODELS:
        reference = arguments.path
        if method in FEW_TO_LEARN:
            reference = str(folder / "few.h5ad")
            in_new_process(
                write_few,
                arguments.path,
                arguments.label_key,
                FEW_TO_LEARN[method],
                Path(reference),
            )
        words = [
            "train",
            reference,
            f"label_key={arguments.label_key}",
            f"output={folder / method}",
        ]
        run(
            [sys.executable, "-m", "scperformer", *words, "logger=none", *MODELS[method]], threads=2
        )
    elif method not in ("check", "train"):
        python = arguments.celltypist if method == "celltypist" else sys.executable
        model = str(folder / f"{method}.pkl")
        run(
            [python, str(RIVALS), "fit", method, arguments.path, arguments.label_key, model],
            threads=2,
        )


def measure(folder: Path, arguments: argparse.Namespace) -> Iterator[dict]:
    """A row for each run; the methods take turns."""
    sample = folder / "sample.h5ad"
    output = folder / arguments.output
    for num_cells in arguments.cells:
        methods = [
            method for method in arguments.methods if num_cells <= MOST_CELLS.get(method, num_cells)
        ]
        if not methods:
            continue
        in_new_process(resample, arguments.path, num_cells, arguments.stored, sample)
        for _ in range(arguments.rounds):
            for threads in arguments.threads:
                for method in methods:
                    cost = run(words_of(method, sample, folder, arguments), threads)
                    line = {"method": method, "cells": num_cells, "threads": threads, **vars(cost)}
                    print(json.dumps(line), file=sys.stderr, flush=True)
                    yield line
                    for left in (output, folder / f"{output.name}.run"):
                        if left.is_dir():
                            shutil.rmtree(left)
                        else:
                            left.unlink(missing_ok=True)
        sample.unlink()


def table(lines: list[dict], methods: list[str]) -> str:
    """Medians for each method, number of cells and threads, and ratios to the first method of the same setting."""
    keys = ["cells", "threads", "method"]
    medians = pd.DataFrame(lines).groupby(keys).median().reset_index()
    medians["place"] = medians["method"].map(methods.index)
    text = [
        "| cells | threads | | wall time (s) | CPU time (s) | peak memory (GiB) | times the wall time | the CPU time |"
    ]
    text.append("|---" * 8 + "|")
    for (cells, threads), rows in medians.sort_values([*keys[:2], "place"]).groupby(keys[:2]):
        first = rows.iloc[0]
        for _, row in rows.iterrows():
            numbers = f"{row.wall:.1f} | {row.cpu:.1f} | {row.memory:.2f}"
            ratios = f"{row.wall / first.wall:.2f} | {row.cpu / first.cpu:.2f}"
            text.append(f"| {cells:,} | {threads} | {row.method} | {numbers} | {ratios} |")
    return "\n".join(text)


def growth(lines: list[dict], methods: list[str]) -> str:
    """Cells per second between the smallest and the largest file (without start-up), and the slope of log time."""
    medians = pd.DataFrame(lines).groupby(["method", "threads", "cells"])[["wall", "cpu"]].median()
    text = [
        "| | threads | cells | cells/s after start-up | cells/s of CPU time | slope of log CPU time |"
    ]
    text.append("|---" * 6 + "|")
    for method in methods:
        for threads in pd.DataFrame(lines)["threads"].unique():
            if (method, threads) not in medians.index.droplevel("cells"):
                continue
            rows = medians.loc[method, threads]
            if len(rows) < 2:
                continue
            few = rows.iloc[0]
            many = rows.iloc[-1]
            more = rows.index[-1] - rows.index[0]
            slope = np.polyfit(
                np.log(rows.index.to_numpy(float)), np.log(rows["cpu"].to_numpy()), 1
            )[0]
            speeds = f"{more / (many.wall - few.wall):,.0f} | {more / (many.cpu - few.cpu):,.0f}"
            span = f"{rows.index[0]:,} to {rows.index[-1]:,}"
            text.append(f"| {method} | {threads} | {span} | {speeds} | {slope:.2f} |")
    return "\n".join(text)


def commands(arguments: argparse.Namespace) -> None:
    if arguments.celltypist is None and "celltypist" in arguments.methods:
        arguments.methods.remove("celltypist")
        print("left out: celltypist (--celltypist names a Python that has it)")
    with tempfile.TemporaryDirectory() as name:
        for method in arguments.methods:
            learn(method, Path(name), arguments)
        lines = list(measure(Path(name), arguments))
    parts = [machine(), table(lines, arguments.methods), growth(lines, arguments.methods)]
    arguments.markdown.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print("\n\n".join(parts))


def write_jobs(folder: Path) -> None:
    """Write the inputs of `jobs`: many cells, compressed; and half of the cells with some genes at less depth."""
    cells = ad.read_h5ad(DATA)
    rows = np.random.default_rng(0).integers(0, cells.n_obs, JOB_CELLS)
    many = ad.AnnData(csr_matrix(cells.X)[rows], var=cells.var[[]])
    many.obs_names = [f"cell_{number}" for number in range(JOB_CELLS)]
    many.write_h5ad(folder / "many.h5ad", compression="lzf")
    panel = cells[::2, :: PANEL[0]].copy()
    panel.X.data = (
        np.random.default_rng(0).binomial(panel.X.data.astype(int), PANEL[1]).astype(np.float32)
    )
    panel.X.eliminate_zeros()
    panel.write_h5ad(folder / "panel.h5ad")


def write_passes(words: list[str], result: Path) -> None:
    """Run a command that reads many.h5ad, and write how often it reads the matrix, and its bytes."""
    from scperformer.cli.main import main
    from scperformer.io.rows import Rows

    num_rows = num_bytes = 0
    read = Rows._read

    def counted(rows: Rows, start: int, stop: int):
        nonlocal num_rows, num_bytes
        block = read(rows, start, stop)
        num_rows += stop - start
        num_bytes += block.data.nbytes + getattr(block, "indices", np.empty(0)).nbytes
        return block

    Rows._read = counted  # type: ignore[method-assign]
    main(words)
    text = (
        f"{words[0]}: {num_rows / JOB_CELLS:.2f} passes over the matrix, {num_bytes / 1e6:,.0f} MB"
    )
    result.write_text(text, encoding="utf-8")


def jobs(arguments: argparse.Namespace) -> None:
    """Time the jobs, which take turns; the ratios are to CellTypist, if it is there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        in_new_process(write_jobs, folder)
        model, many, panel = (str(folder / file) for file in ("model", "many.h5ad", "panel.h5ad"))
        train = ["train", str(DATA), "label_key=cell_type", "logger=none"]
        ours = {
            "train, 2,638 cells": [*train, f"output={model}"],
            "predict, 100,000 cells": [
                "predict",
                many,
                f"model_path={model}",
                f"output={folder / 'many_out.h5ad'}",
            ],
            "check, 100,000 cells": ["check", many, f"model_path={model}"],
            "predict, 1,319 cells of a panel (refit)": [
                "predict",
                panel,
                f"model_path={model}",
                f"output={folder / 'p.h5ad'}",
            ],
            "predict without a model, 2,638 cells": [
                "predict",
                str(DATA),
                f"output={folder / 'calls.h5ad'}",
            ],
            "report, 2,638 cells": [
                "report",
                str(folder / "calls.h5ad"),
                f"output={folder / 'report.html'}",
            ],
        }
        commands = {
            job: [
                arguments.python,
                "-m",
                "scperformer",
                *words,
                *(["overwrite=true"] if words[0] != "check" else []),
            ]
            for job, words in ours.items()
        }
        if arguments.celltypist is not None:
            pickle = str(folder / "celltypist.pkl")
            run(
                [
                    arguments.celltypist,
                    str(RIVALS),
                    "fit",
                    "celltypist",
                    str(DATA),
                    "cell_type",
                    pickle,
                ]
            )
            output = str(folder / "celltypist.h5ad")
            commands["CellTypist, 100,000 cells"] = [
                *(arguments.celltypist, str(RIVALS), "annotate", "celltypist", many, pickle, output)
            ]
        lines = [
            {"job": job, "threads": threads, **vars(run(words, threads))}
            for _ in range(arguments.rounds)
            for threads in arguments.threads
            for job, words in commands.items()
        ]
        medians = pd.DataFrame(lines).groupby(["job", "threads"], sort=False).median()
        rivals = medians["cpu"].get("CellTypist, 100,000 cells", {})
        text = [
            "| job | threads | wall time (s) | CPU time (s) | peak memory (GiB) | CPU time of CellTypist's job |",
            "|---" * 6 + "|",
        ]
        for (job, threads), row in medians.iterrows():
            numbers = f"{row.wall:.1f} | {row.cpu:.1f} | {row.memory:.2f}"
            text.append(
                f"| {job} | {threads} | {numbers} | {row.cpu / rivals.get(threads, np.nan):.2f} |"
            )
        passes = []
        if arguments.python == sys.executable:
            for words in (
                ours["predict, 100,000 cells"] + ["overwrite=true"],
                ours["check, 100,000 cells"],
            ):
                in_new_process(write_passes, words, folder / "passes.txt")
                passes.append((folder / "passes.txt").read_text(encoding="utf-8"))
        parts = [f"{machine()}; medians of {arguments.rounds}", "\n".join(text), *passes]
    arguments.markdown.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print("\n\n".join(parts))


def log_normalised(source: Path) -> ad.AnnData:
    cells = ad.read_h5ad(source)
    cells.X = cells.X.astype(np.float32)
    sc.pp.normalize_total(cells, target_sum=1e4)
    sc.pp.log1p(cells)
    cells.uns.pop("log1p")
    return cells


def write_reference(source: Path, path: Path) -> None:
    """Write cells with labels that are split at random, and the most variable genes."""
    cells = ad.read_h5ad(source)
    logged = log_normalised(source).X
    order = np.argsort(
        -np.asarray(logged.power(2).mean(0) - np.square(logged.mean(0))).ravel(), kind="stable"
    )
    cells = cells[:, np.sort(order[:NUM_GENES])].copy()
    rng = np.random.default_rng(0)
    types = cells.obs["cell_type"].astype(str).to_numpy()
    counts = pd.Series(types).value_counts()
    parts = np.maximum(1, np.floor(NUM_LABELS * counts / counts.sum()).astype(int))
    parts[counts.index[0]] += NUM_LABELS - parts.sum()
    cells.obs["label"] = [f"{name} {rng.integers(parts[name])}" for name in types]
    cells.write_h5ad(path)


def write_cells(source: Path, num_cells: int, path: Path) -> None:
    """Write cells drawn with replacement."""
    cells = ad.read_h5ad(source)
    rows = np.random.default_rng(1).integers(0, cells.n_obs, num_cells)
    drawn = ad.AnnData(cells.X[rows], var=cells.var[[]])
    drawn.obs_names = [f"cell_{number}" for number in range(num_cells)]
    drawn.write_h5ad(path)


def forms(source: Path) -> dict[str, ad.AnnData]:
    """Return the same cells as files of other kinds."""
    cells = log_normalised(source)
    counts = ad.read_h5ad(source)
    found = {"log-normalised, symbols": cells, "counts, symbols": counts}
    ids = human_genes().ids
    found["log-normalised, Ensembl ids"] = cells.copy()
    found["log-normalised, Ensembl ids"].var_names = [
        ids.get(name, name) for name in cells.var_names
    ]
    found["log-normalised, Ensembl ids"].var_names_make_unique()
    found["log-normalised, lower case"] = cells.copy()
    found["log-normalised, lower case"].var_names = cells.var_names.str.lower()
    found["scaled, counts in a layer"] = cells.copy()
    found["scaled, counts in a layer"].layers["counts"] = counts.X
    found["scaled, counts in a layer"].X = np.clip((cells.X.toarray() - 0.2) / 0.5, None, 10)
    panel = counts[:, ::20].copy()
    found["counts of a panel"] = panel
    return found


def compare_scores(python: str, model: Path, folder: Path, source: Path) -> str:
    """Return the largest differences of scores, probabilities and labels with genes=exact."""
    sample = folder / "compared.h5ad"
    log_normalised(source)[:NUM_COMPARED].write_h5ad(sample)
    run([python, str(RIVALS), "scores", str(sample), str(model), str(folder / "there.npz")])
    there = np.load(folder / "there.npz")
    cells = scp.annotate(ad.read_h5ad(sample), "immune", options=as_options(["genes=exact"]))
    found = np.abs(cells.obsm["X_scperformer"] - there["decision"]).max()
    own = np.abs(cells.obsm["scperformer_own_proba"].to_numpy() - there["probability"]).max()
    same = (cells.obs["scperformer_label"].astype(str) == there["labels"]).sum()
    largest = np.abs(there["decision"]).max()
    return (
        f"Scores of {cells.n_obs:,} cells (up to {largest:.1f}): largest difference {found:.1e}; probabilities: "
        f"{own:.1e}; the same label: {same:,}."
    )


def compare_forms(python: str, model: Path, folder: Path, source: Path) -> str:
    """Return a table of what each makes of files of several kinds."""
    lines = [
        "| file | CellTypist | genes found by exactly the same name | genes found by default | same labels |"
    ]
    lines.append("|---" * 5 + "|")
    usual = None
    for name, cells in forms(source).items():
        path = folder / "form.h5ad"
        cells.write_h5ad(path)
        run([python, str(RIVALS), "scores", str(path), str(model), str(folder / "form.npz")])
        content = (folder / "form.npz").read_bytes()
        said = "annotated"
        if content.startswith(b"refused"):
            said = "refused: " + " ".join(content.decode().removeprefix("refused: ").split())[:90]
        options = {"min_overlap": 0.0, "species": "human"}
        found = scp.annotate(cells.copy(), "immune", options=options)
        try:
            exact = scp.annotate(cells.copy(), "immune", options=options | {"genes": "exact"})
            num_exact = exact.uns["scperformer"]["genes"]["num_shared"]
        except scp.InputError:
            num_exact = 0
        labels = found.obs["scperformer_label"].astype(str).to_numpy()
        usual = labels if usual is None else usual
        num = found.uns["scperformer"]["genes"]["num_shared"]
        lines.append(
            f"| {name} | {said} | {num_exact:,} | {num:,} | {(labels == usual).mean():.1%} |"
        )
    return "\n".join(lines)


def measure_both(
    python: str, model: Path, folder: Path, arguments: argparse.Namespace, result: Path
) -> None:
    """Write a table of time and memory of both, for a file of many cells."""
    sample = folder / "sample.h5ad"
    in_new_process(write_cells, arguments.source, arguments.cells, sample)
    out = folder / "out.h5ad"
    ours = [
        sys.executable,
        "-m",
        "scperformer",
        "predict",
        str(sample),
        "model_path=immune",
        f"output={out}",
    ]
    commands = {
        "scperformer": ours,
        "CellTypist": [
            python,
            str(RIVALS),
            "annotate",
            "celltypist",
            str(sample),
            str(model),
            str(out),
        ],
    }
    lines = []
    for _ in range(arguments.rounds):
        for name, words in commands.items():
            cost = run(words)
            out.unlink()
            print(json.dumps({"method": name, **vars(cost)}), file=sys.stderr, flush=True)
            lines.append({"method": name, **vars(cost)})
    medians = pd.DataFrame(lines).groupby("method", sort=False).median()
    text = ["| | wall time (s) | CPU time (s) | cells/s | peak memory (GiB) |", "|---" * 5 + "|"]
    for name, row in medians.iterrows():
        speed = f"{arguments.cells / row.wall:,.0f}"
        text.append(f"| {name} | {row.wall:.1f} | {row.cpu:.1f} | {speed} | {row.memory:.2f} |")
    result.write_text("\n".join(text), encoding="utf-8")


def celltypist_model(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["SCPERFORMER_MODELS"] = str(folder / "models")
        in_new_process(write_reference, arguments.source, folder / "reference.h5ad")
        model = folder / "immune.pkl"
        words = ["fit", "celltypist", str(folder / "reference.h5ad"), "label", str(model)]
        run([arguments.python, str(RIVALS), *words])
        saved = scp.import_model(model).load().saved
        sizes = f"{len(saved.labels)} labels, {len(saved.genes):,} genes, {model.stat().st_size / 1e6:.1f} MB"
        parts = [
            f"{machine()}; the model: {sizes}, {saved.imported['estimator']}.",
            compare_scores(arguments.python, model, folder, arguments.source),
            compare_forms(arguments.python, model, folder, arguments.source),
        ]
        # The peak memory of a process includes the peak of its parent at its start: a new parent has little.
        in_new_process(
            measure_both, arguments.python, model, folder, arguments, folder / "measured.md"
        )
        parts.append(
            f"{arguments.cells:,} cells:\n\n{(folder / 'measured.md').read_text(encoding='utf-8')}"
        )
    arguments.markdown.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print("\n\n".join(parts))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(required=True)
    step = steps.add_parser("jobs", help="what users do, large and small")
    step.set_defaults(run=jobs)
    step.add_argument("markdown", type=Path, help="the table is written to this file")
    step.add_argument("--rounds", type=int, default=3)
    step.add_argument("--threads", type=int, nargs="+", default=[1])
    step.add_argument(
        "--python", default=sys.executable, help="the Python of another version of scperformer"
    )
    step.add_argument(
        "--celltypist", metavar="PYTHON", help="the Python of an environment with CellTypist"
    )
    step = steps.add_parser("commands", help="whole commands, ours and others'")
    step.set_defaults(run=commands)
    step.add_argument("path", help="an h5ad file of counts to draw from")
    step.add_argument("label_key")
    step.add_argument("markdown", type=Path, help="the tables are written to this file")
    step.add_argument("--cells", type=int, nargs="+", default=[16, 2_638, 20_000, 100_000])
    step.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    step.add_argument("--rounds", type=int, default=3)
    step.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    step.add_argument("--stored", choices=["csr", "csc", "dense"], default="csr")
    step.add_argument(
        "--output", default="out.h5ad", help="its ending decides the format of our predictions"
    )
    step.add_argument(
        "--celltypist", metavar="PYTHON", help="the Python of an environment with CellTypist"
    )
    step = steps.add_parser(
        "celltypist", help="an imported model of CellTypist, here and in CellTypist"
    )
    step.set_defaults(run=celltypist_model)
    step.add_argument("python", help="the Python of an environment with CellTypist")
    step.add_argument("markdown", type=Path, help="the tables are written to this file")
    step.add_argument("--cells", type=int, default=100_000)
    step.add_argument("--rounds", type=int, default=1)
    step.add_argument("--source", type=Path, default=DATA)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
