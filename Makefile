# Everything here needs Python 3.11 or newer and make; pip fetches the rest once.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help demo test check lint types docs clean

help:
	@echo "make demo    set up and run the demonstration: eight architectures, paired seeds, a verdict"
	@echo "make test    set up, check style, types and import layers, run the tests"
	@echo "make docs    set up and build the documentation into site/"

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable ".[dev,browser]"
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable ".[docs]"
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/isoflop demo

test: check
	$(BIN)/pytest -n auto

check: lint types

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(VENV)/.installed-dev
	$(BIN)/pyright

docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build site *.egg-info src/*.egg-info
