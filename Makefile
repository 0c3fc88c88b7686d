# `make annotate` and `make test` do all the set-up they need on a machine with git and Python 3.11 or newer.

VENV ?= .venv
PYTHON ?= python3.13 python3.12 python3.11 python3# the first of these that is new enough makes VENV
ARGS ?=# more words for snakemake or pytest, such as ARGS="--configfile my.yaml"

INSTALLED := $(VENV)/.installed-test
# What the workflow needs is a gigabyte less than what the tests do.
FOR_WORKFLOW := $(firstword $(wildcard $(INSTALLED)) $(VENV)/.installed-workflow)
ACTIVATE := . "$(VENV)/bin/activate"
# Threads that wait for work spin by default; with more threads than cores that stalls everything.
SINGLE := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE

.PHONY: annotate test lint pytest install docs pictures packaged-model

annotate: $(FOR_WORKFLOW)
	$(ACTIVATE) && snakemake --cores 8 annotate $(ARGS)

test: lint pytest

lint: $(INSTALLED)
	$(ACTIVATE) && ruff check . && ruff format --check . && mypy

pytest: $(INSTALLED)
	$(ACTIVATE) && $(SINGLE) pytest -n 2 --dist loadscope --no-loadscope-reorder $(ARGS)

install: $(INSTALLED)

# The site: docs/_build/html/index.html. Its tutorials are run, and any warning is an error.
docs: $(INSTALLED)
	"$(VENV)/bin/python" -m pip install --quiet -c packaging/constraints.txt -e '.[docs]'
	$(ACTIVATE) && $(SINGLE) sphinx-build -W --keep-going -b html docs docs/_build/html

# The pictures of the pages, and the graph of the rules in docs/workflow.md.
pictures: $(INSTALLED)
	$(ACTIVATE) && $(SINGLE) python docs/pictures.py

$(VENV)/.installed-%: pyproject.toml packaging/constraints.txt
	@set -e; \
	if [ ! -x "$(VENV)/bin/python" ]; then \
	    found=; \
	    for python in $(PYTHON); do \
	        if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then \
	            found="$$python"; break; \
	        fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "none of $(PYTHON) is Python 3.11 or newer with venv: install one, or name it as in make PYTHON=/path/to/python3.11 (Debian, Ubuntu: apt-get install python3-venv)" >&2; \
	        exit 1; \
	    fi; \
	    "$$found" -m venv "$(VENV)"; \
	fi; \
	echo "installing into $(VENV): once, some minutes"; \
	"$(VENV)/bin/python" -m pip install --quiet -c packaging/constraints.txt -e '.[$*]'; \
	touch "$@"

# The model in the package, trained on the PBMC of the embedded data (data/README.md).
PACKAGED := scperformer/model/packaged/pbmc3k
packaged-model: $(INSTALLED)
	$(ACTIVATE) && $(SINGLE) scperformer train data/pbmc3k.h5ad label_key=cell_type tissue=blood \
	    output=build/pbmc3k overwrite=true trainer=cpu
	cp build/pbmc3k/[!.]* $(PACKAGED)/
