PYTHON ?= python3
WORKERS ?= 2

BIN := .venv/bin
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long lint bench

help:  ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv and install what is pinned in requirements.lock

# The stamp is written last, so an interrupted set-up is repeated.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "anabranch needs Python 3.11 or later, this is " + sys.version.split()[0] + "; name another with make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

demo: setup  ## run the demonstration
	@$(BIN)/python -m anabranch.cli demo

lint: setup  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# loadgroup hands out single tests, but keeps those of one group (the ones that share a SparkSession) in one worker.
test: lint  ## lint, then all tests but the long ones
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --durations 10

test-long: setup  ## tens of thousands of random cases
	$(BIN)/python -m pytest -m long -n $(WORKERS) --dist loadgroup --durations 10

bench: setup  ## the benchmarks; tables on the terminal, rows in bench/out/
	$(BIN)/python -m bench.engine
	$(BIN)/python -m bench.growth
	$(BIN)/python -m bench.theta
