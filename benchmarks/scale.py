"""Many cells and many samples: memory of training from disk, and the workflow on one machine and on a cluster.

    python benchmarks/scale.py disk pbmc3k.h5ad --cells 20000 1000000 --disk-only
    python benchmarks/scale.py cluster pbmc3k.h5ad my_model table.md --cores 2
    python benchmarks/scale.py cluster pbmc3k.h5ad my_model table.md --big 1000000 -- --profile workflows/profiles/slurm

Cells are drawn from the file with replacement. `disk` runs `scperformer pretrain` with a very small network for one
epoch, each time in a new process. `cluster` annotates the same samples with the options after `--` and with `--cores`;
its table has the time of the workflow, the number, time and CPU time of the `predict` jobs, and the overhead per
sample: the time of the workflow and its report, without these jobs.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
from machine import in_new_process, machine, resample, run

# A small network: an epoch of 200,000 cells would take most of an hour with the preset's.
SMALL = ["model=tiny", "model.dim=8", "model.num_heads=1", "model.head_dim=8"]
SMALL += ["model.gene_dropout=0.95", "trainer.batch_size=128"]
ROOT = Path(__file__).parents[1]
HEAD = "| run | wall | jobs sent | predict jobs | their time | their CPU time | highest memory | overhead per sample |"


def disk(arguments: argparse.Namespace) -> None:
    sources = "| from disk: peak GiB | seconds |" + (
        "" if arguments.disk_only else " in memory: peak GiB | seconds |"
    )
    print(
        f"{machine()}\n\n| cells | file (GB) {sources}\n{'|---' * (sources.count('|') + 1)}|",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for num_cells in arguments.cells:
            corpus = folder / f"{num_cells}.h5ad"
            in_new_process(resample, arguments.path, num_cells, "csr", corpus)
            row = f"| {num_cells:,} | {corpus.stat().st_size / 1e9:.2f} "
            for in_memory in ("false",) if arguments.disk_only else ("false", "true"):
                words = [
                    str(corpus),
                    f"output={folder / 'encoder'}",
                    "overwrite=true",
                    "trainer.max_epochs=1",
                ]
                options = [f"data.in_memory={in_memory}", "logger=none", *SMALL]
                cost = run([sys.executable, "-m", "scperformer", "pretrain", *words, *options])
                row += f"| {cost.memory:.2f} | {cost.wall:.0f} "
            print(f"{row}|", flush=True)


def write_samples(folder: Path, arguments: argparse.Namespace) -> Path:
    """Write the samples and their sheet."""
    lines = ["sample\tpath"]
    for i in range(arguments.samples):
        resample(arguments.path, arguments.cells, "csr", folder / f"s{i}.h5ad", seed=i)
        lines.append(f"s{i}\ts{i}.h5ad")
    if arguments.big:
        resample(arguments.path, arguments.big, "csr", folder / "big.h5ad")
        lines.append("big\tbig.h5ad")
    sheet = folder / "samples.tsv"
    sheet.write_text("\n".join(lines) + "\n")
    return sheet


def annotate(
    folder: Path, sheet: Path, arguments: argparse.Namespace, words: list[str]
) -> tuple[float, str]:
    """Run the workflow in a folder; return its seconds and its output."""
    folder.mkdir()
    config = [
        f"sample_sheet={sheet}",
        f"model_path={arguments.model.resolve()}",
        f"predict_jobs={arguments.jobs}",
    ]
    snakemake = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    command = [*snakemake, "annotate", *words, "--config", *config]
    start = time.perf_counter()
    found = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if found.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {found.stdout[-2000:]}")
    return time.perf_counter() - start, found.stdout


def row(name: str, folder: Path, seconds: float, said: str, num_samples: int, slots: int) -> str:
    """A row of the table, from snakemake's log and its benchmarks of the jobs."""
    jobs = pd.concat(
        pd.read_csv(path, sep="\t") for path in folder.glob("results/benchmarks/predict/*.tsv")
    )
    submitted = len(re.findall(r"has been submitted with SLURM jobid", said))
    times = f"{jobs['s'].sum():.0f} s | {jobs['cpu_time'].sum():.0f} s | {jobs['max_rss'].max() / 1024:.2f} GiB"
    overhead = (seconds - jobs["s"].sum() / slots) / num_samples
    return f"| {name} | {seconds:.0f} s | {submitted or 'none'} | {len(jobs)} | {times} | {overhead:.2f} s |"


def cluster(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(dir=arguments.table.resolve().parent) as name:
        folder = Path(name)
        sheet = write_samples(folder, arguments)
        runs = {"one machine": ["--cores", str(arguments.cores)]}
        runs |= {"cluster": arguments.cluster} if arguments.cluster else {}
        rows = [HEAD, "|---" * (HEAD.count("|") - 1) + "|"]
        for title, words in runs.items():
            place = folder / title.replace(" ", "_")
            seconds, said = annotate(place, sheet, arguments, words)
            slots = (
                arguments.cores if title == "one machine" else arguments.slots or arguments.cores
            )
            num_samples = arguments.samples + bool(arguments.big)
            rows.append(row(title, place, seconds, said, num_samples, slots))
            print(rows[-1], flush=True)
    small = f"{arguments.samples} samples of {arguments.cells:,} cells"
    text = f"{small}{f' and one of {arguments.big:,}' if arguments.big else ''}. {machine()}\n\n"
    arguments.table.write_text(text + "\n".join(rows) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(required=True)
    step = steps.add_parser("disk", help="memory of training from disk and in memory")
    step.set_defaults(run=disk)
    step.add_argument("path", help="an h5ad file of counts to draw from")
    step.add_argument("--cells", type=int, nargs="+", default=[20_000, 200_000])
    step.add_argument("--disk-only", action="store_true", help="leave out training in memory")
    step = steps.add_parser("cluster", help="the workflow with many samples")
    step.set_defaults(run=cluster)
    step.add_argument("path", help="an h5ad file of counts to draw from")
    step.add_argument("model", type=Path, help="a model folder that can annotate it")
    step.add_argument("table", type=Path, help="the Markdown table is written to this file")
    step.add_argument("--samples", type=int, default=200, help="number of small samples")
    step.add_argument("--cells", type=int, default=1_000, help="cells of each of them")
    step.add_argument("--big", type=int, default=0, help="cells of one more sample; 0: none")
    step.add_argument("--jobs", type=int, default=8, help="jobs of the small samples, at most")
    step.add_argument(
        "--cores", type=int, default=os.cpu_count(), help="cores of this machine to use"
    )
    step.add_argument(
        "--slots", type=int, help="jobs that the cluster runs at a time (default: --cores)"
    )
    step.epilog = "After --: options of snakemake that send its jobs to a cluster."
    given = sys.argv[1:]
    split = given.index("--") if "--" in given else len(given)
    arguments = parser.parse_args(given[:split], argparse.Namespace(cluster=given[split + 1 :]))
    arguments.run(arguments)


if __name__ == "__main__":
    main()
