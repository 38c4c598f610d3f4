# Two commands matter: `make serve` runs a node on real weights, `make test` passes all tests. Both set up what they need.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help setup serve cluster check lint types quick slow test accept docs clean

help:
	@echo "make serve    set up and run one node on SmolLM2, http://127.0.0.1:8081"
	@echo "make cluster  three nodes on loopback: two with SmolLM2, one with Gemma"
	@echo "make check    lint, types, quick tests: minutes"
	@echo "make test     everything"
	@echo "make accept   show each promise of the walk-through, run for real"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; $$($(PYTHON) --version) was found. Name another: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The stamps make a second run quick. Building llama.cpp takes minutes the first time; pip keeps the wheel.
$(VENV)/.serve: pyproject.toml | $(VENV)/bin/python
	@echo "Setting up the server (llama.cpp is compiled once, which takes some minutes)..."
	$(PIP) install --quiet --editable '.[serve,demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.serve
	$(PIP) install --quiet --editable '.[serve,demo,dev]'
	@touch $@

setup: $(VENV)/.dev

serve: $(VENV)/.serve
	@exec $(BIN)/saiserve node

cluster: $(VENV)/.serve
	@exec $(BIN)/python deploy/three_nodes.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --exclude '*.md' .

types: $(VENV)/.dev
	$(BIN)/mypy

quick: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not slow" -n 2

# One at a time: these start processes and measure what happens between them.
slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow

check: lint types quick

test: lint types quick slow

accept: $(VENV)/.dev
	$(BIN)/python -m acceptance

clean:
	rm -rf $(VENV) .state .mypy_cache .ruff_cache .pytest_cache
