# `make help` lists the targets. Everything is set up on first use and kept up to date by the stamp files.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
HAS_GPU := $(wildcard /dev/nvidia0)
CONSTRAINTS := $(if $(HAS_GPU),,-c constraints.txt)
# pip does not compile here (few modules are ever imported), so Python must keep the bytecode of those that are. Without
# it, each start of a trainer would compile torch, peft and transformers again: 10 s of processor time instead of 4.
export PYTHONDONTWRITEBYTECODE :=

# What computes gains nothing from more processes than cores; what waits for processes, downloads and time limits does.
# Threads of one process that wait for a displaced thread of theirs burn a core: where processes share cores, each has one.
FAST := -m "not vllm and not servers and not slow" -n 2 --dist loadfile --durations=20
SLOW := -m "(slow or servers) and not vllm" -n 3 --dist loadfile --no-loadscope-reorder --durations=20
VLLM := tests/full -m vllm --durations=20

.DEFAULT_GOAL := help
.PHONY: help setup engine quickstart test test-fast check format clean

help: ## Show this help
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/.installed: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.11, or call make PYTHON=python3.12"; exit 1; }
	@echo "==> setting up $(VENV) (client, server, development tools)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check -q --progress-bar off --upgrade pip && \
	  $(BIN)/python -m pip install -q --progress-bar off --no-compile $(CONSTRAINTS) -e '.[server,quickstart,dev]' \
	  || { echo "==> pip failed. Is a package registry in reach, and are 3 GB free? Then run make again."; exit 1; }
	@touch $@

setup: $(VENV)/.installed ## Set up .venv

engine: setup ## Install vLLM into an environment of its own
	@$(BIN)/art-langgraph engine install

quickstart: engine ## Train the example agent and show that it got better; ARGS="--steps 4" passes options
	@$(BIN)/art-langgraph quickstart $(ARGS)

test: engine ## All tests, the real vLLM included
	@echo "==> the fast tests"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(FAST)
	@echo "==> the slow tests, three at a time: processes that are started and killed, other people's servers and versions"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SLOW)
	@echo "==> the tests on the real vLLM"
	@$(BIN)/python -m pytest $(VLLM)

test-fast: setup ## The tests that take no minutes: without vLLM, `langgraph dev`, other people's MCP servers, kills
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(FAST)

check: setup ## Lint, types, import layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: setup ## Format the code
	@$(BIN)/ruff check --fix -q . ; $(BIN)/ruff format .

clean: ## Remove what the other targets made here
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
