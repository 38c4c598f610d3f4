# Two commands matter: `make serve` runs a node on real weights, `make test` passes all tests. Both set up what they need.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help setup serve cluster check lint types quick slow test accept clients peers peer-tests clean

help:
	@echo "make serve    set up and run one node on SmolLM2, http://127.0.0.1:8081"
	@echo "make cluster  three nodes on loopback: two with SmolLM2, one with Gemma; PORT=8610 for others than 8081-8083"
	@echo "make check    lint, types, quick tests: minutes"
	@echo "make test     everything"
	@echo "make accept   show each promise of the walk-through, run for real"
	@echo "make clients  Claude Code, Codex and OpenCode themselves against two nodes (npm fetches 1.2 GB)"
	@echo "make peer-tests  llama.cpp's own server tests against a node: a quarter of an hour"
	@echo "make peers    build llama-server to measure beside: minutes, once"

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
	$(PIP) install --quiet --editable '.[serve,demo,dev,peers]'
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

# Virtual time and single processes share the cores; the rest go one at a time: they start processes and measure what
# happens between them.
APART := tests/simulation tests/unit

slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow -n 2 $(APART)
	$(BIN)/python -m pytest -m slow $(APART:%=--ignore=%)

check: lint types quick

test: lint types quick slow

accept: $(VENV)/.dev
	$(BIN)/python -m acceptance

# llama-server out of the sources the bindings are built from, so that both measure the same llama.cpp.
PEERS      := .peers
LLAMA      := llama-cpp-python==0.3.36
LLAMA_TREE := $(PEERS)/llama_cpp_python-0.3.36
LLAMA_CPP  := $(LLAMA_TREE)/vendor/llama.cpp
UNPACKING  := $(PEERS)/unpacking
JOBS       ?= 2

peers: $(PEERS)/bin/llama-server
	@echo "$(abspath $<)"

$(LLAMA_CPP)/CMakeLists.txt: | $(VENV)/bin/python
	rm -rf $(UNPACKING) $(LLAMA_TREE)
	$(PIP) download --quiet --no-deps --no-binary :all: --dest $(UNPACKING) '$(LLAMA)'
	tar -xzf $(UNPACKING)/llama_cpp_python-*.tar.gz -C $(UNPACKING)
	mv $(UNPACKING)/$(notdir $(LLAMA_TREE)) $(LLAMA_TREE)
	rm -rf $(UNPACKING)

# Minutes for each file: as often as is promised in tests/peers/test_llama_server_tests.py.
peer-tests: $(VENV)/.dev $(LLAMA_CPP)/CMakeLists.txt
	PEER_TESTS=1 $(BIN)/python -m pytest -m slow -v tests/peers

# No web interface and no prebuilt one: that would be fetched while building.
$(PEERS)/bin/llama-server: | $(LLAMA_CPP)/CMakeLists.txt
	cmake -S $(LLAMA_CPP) -B $(PEERS)/build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF \
	  -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF \
	  -DLLAMA_USE_PREBUILT_UI=OFF -DBUILD_SHARED_LIBS=OFF
	cmake --build $(PEERS)/build --target llama-server --parallel $(JOBS)
	mkdir -p $(PEERS)/bin
	cp $(PEERS)/build/bin/llama-server $@

# Clients of pinned versions, in a folder of their own, run where there is no network but loopback.
.clients/.installed: tools/clients/package.json
	@mkdir -p .clients
	cp tools/clients/package.json .clients/
	npm install --prefix .clients --no-package-lock --no-audit --no-fund --loglevel=error
	@touch $@

ALONE := unshare $(if $(filter-out 0,$(shell id -u)),--user --map-root-user) --net sh -c 'ip link set lo up && exec "$$@"' sh

clients: $(VENV)/.dev .clients/.installed
	SAISERVE_CLIENTS=$(CURDIR)/.clients $(ALONE) $(BIN)/python -m pytest -m slow -v tests/api/test_coding_agents.py

clean:
	rm -rf $(VENV) .clients .state .mypy_cache .ruff_cache .pytest_cache
