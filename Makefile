# What a newcomer types. Needs make and Python 3.11 or later; everything else goes into .venv, with the versions of
# constraints.txt. A second call finds it there and starts at once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
RUNTIME := $(VENV)/.installed
DEV := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help train test lint format clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

train: $(RUNTIME) ## teach the tiny model on the embedded desktop; ARGS="--run.seed 1" sets more
	$(BIN)/arpo train desk $(ARGS)

test: lint ## check style and types, run all tests; ARGS="-k replay" selects some
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(ARGS)

lint: $(DEV) ## check style and types only
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

format: $(DEV) ## rewrite the code in the house style
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean: ## remove what was installed and cached; runs/ stays
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip is what a half-made environment lacks, so its presence stands for the whole.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed, this is " + sys.version if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv --clear $(VENV)

# The build tool is installed first and used from here, so that it is pinned too.
$(RUNTIME): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing into $(VENV); this takes a minute or two, once."
	$(PIP) setuptools
	$(PIP) --no-build-isolation --editable .
	@touch $@

$(DEV): $(RUNTIME)
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@
