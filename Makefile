PYTHON ?= python3
WORKERS ?= 2
PART ?= 1/1
SEED ?=

# Tests and Spark start hundreds of processes: modules are not to be compiled in each.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
STAMP := .venv/.installed
CLASSES := .venv/spark-classes.jsa

.DEFAULT_GOAL := help
.PHONY: help setup demo quick test test-long lint bench

help:  ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv and install what is pinned in requirements.lock

# The stamp is written last, so an interrupted set-up is repeated.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "anabranch needs Python 3.11 or later, this is " + sys.version.split()[0] + "; name another with make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

demo: setup  ## run the demonstration
	@$(BIN)/python -m anabranch.cli demo

lint: setup  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Tests are handed out one by one, those on Spark first: each worker has a Spark of its own, and none waits for the other.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist load --maxschedchunk 1 $(if $(SEED),--seed $(SEED))

quick: setup  ## ruff, doctests and all tests without Spark, with few random cases
	$(BIN)/ruff check .
	$(PYTEST) -q -m "not (long or spark or fresh)" --quick

# JVMs start in half the time with it; tests pass without, too.
$(CLASSES): $(STAMP)
	@$(BIN)/python -m tests.support.class_archive $@ > .venv/spark-classes.log 2>&1 || cat .venv/spark-classes.log

test: setup  ## lint, then all tests but the long ones
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=recurse lint $(CLASSES)
	$(PYTEST) --durations 10

test-long: setup $(CLASSES)  ## tens of thousands of random cases, or with PART=3/12 the third of twelve parts of them
	$(PYTEST) -m long --part $(PART) --durations 10

bench: setup  ## the benchmarks; tables on the terminal, rows in bench/out/
	$(BIN)/python -m bench.engine
	$(BIN)/python -m bench.growth
	$(BIN)/python -m bench.records --queries 1
	$(BIN)/python -m bench.theta
