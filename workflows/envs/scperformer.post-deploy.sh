#!/usr/bin/env bash
# Runs once inside the new conda environment, in the working directory: it has to be the checkout.
set -euo pipefail
if [ ! -f constraints.txt ] || [ ! -d scperformer ]; then
    echo "no checkout of scperformer in $PWD; expected to install from it: run snakemake there" >&2
    exit 1
fi
python -m pip install -c constraints.txt .
