"""The workflow with many samples, on a cluster and on one machine.

    python benchmarks/cluster.py pbmc3k.h5ad my_model table.md --cores 2
    python benchmarks/cluster.py pbmc3k.h5ad my_model table.md --big 1000000 -- --profile workflow/profiles/slurm

The samples are cells with counts, drawn with replacement from the file. One of them may be very large. Two runs
annotate the same samples with the same model: one with the options after `--`, one with `--cores`. A Markdown table
lists for each run the time of the whole workflow, the number, time and CPU time of the `predict` jobs, and the overhead
per sample: the time of the workflow and its report, without these jobs. Samples are temporary.
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
from machine import machine
from speed import resample

ROOT = Path(__file__).parents[1]
HEAD = "| run | wall | jobs sent | predict jobs | their time | their CPU time | highest memory | overhead per sample |"


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


def annotate(folder: Path, sheet: Path, arguments: argparse.Namespace, words: list[str]) -> tuple[float, str]:
    """Run the workflow in a folder; return its seconds and its output."""
    folder.mkdir()
    config = [f"samples={sheet}", f"model_path={arguments.model.resolve()}", f"predict_jobs={arguments.jobs}"]
    snakemake = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "workflow/Snakefile")]
    command = [*snakemake, "annotate", *words, "--config", *config]
    start = time.perf_counter()
    found = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if found.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {found.stdout[-2000:]}")
    return time.perf_counter() - start, found.stdout


def row(name: str, folder: Path, seconds: float, said: str, num_samples: int, slots: int) -> str:
    """A row of the table, from snakemake's log and its benchmarks of the jobs."""
    jobs = pd.concat(pd.read_csv(path, sep="\t") for path in folder.glob("results/benchmarks/predict/*.tsv"))
    submitted = len(re.findall(r"has been submitted with SLURM jobid", said))
    times = f"{jobs['s'].sum():.0f} s | {jobs['cpu_time'].sum():.0f} s | {jobs['max_rss'].max() / 1024:.2f} GiB"
    overhead = (seconds - jobs["s"].sum() / slots) / num_samples
    return f"| {name} | {seconds:.0f} s | {submitted or 'none'} | {len(jobs)} | {times} | {overhead:.2f} s |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", help="an h5ad file of counts to draw from")
    parser.add_argument("model", type=Path, help="a model folder that can annotate it")
    parser.add_argument("table", type=Path, help="where the Markdown table is written")
    parser.add_argument("--samples", type=int, default=200, help="number of small samples")
    parser.add_argument("--cells", type=int, default=1_000, help="cells of each of them")
    parser.add_argument("--big", type=int, default=0, help="cells of one more sample; 0: none")
    parser.add_argument("--jobs", type=int, default=8, help="jobs of the small samples, at most")
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="cores of this machine to use")
    parser.add_argument("--slots", type=int, help="jobs that the cluster runs at a time (default: --cores)")
    parser.epilog = "Behind --: words for snakemake that send its jobs to a cluster."
    given = sys.argv[1:]
    split = given.index("--") if "--" in given else len(given)
    arguments = parser.parse_args(given[:split])
    cluster = given[split + 1 :]
    with tempfile.TemporaryDirectory(dir=arguments.table.resolve().parent) as name:
        folder = Path(name)
        sheet = write_samples(folder, arguments)
        runs = {"one machine": ["--cores", str(arguments.cores)]}
        runs |= {"cluster": cluster} if cluster else {}
        rows = [HEAD, "|---" * (HEAD.count("|") - 1) + "|"]
        for run, words in runs.items():
            seconds, said = annotate(folder / run.replace(" ", "_"), sheet, arguments, words)
            slots = arguments.cores if run == "one machine" else arguments.slots or arguments.cores
            num_samples = arguments.samples + bool(arguments.big)
            rows.append(row(run, folder / run.replace(" ", "_"), seconds, said, num_samples, slots))
            print(rows[-1], flush=True)
    small = f"{arguments.samples} samples of {arguments.cells:,} cells"
    text = f"{small}{f' and one of {arguments.big:,}' if arguments.big else ''}. {machine()}\n\n"
    arguments.table.write_text(text + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
