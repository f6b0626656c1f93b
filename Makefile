# `make help` lists the targets. Everything is set up on first use and kept up to date by the stamp files.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
HAS_GPU := $(wildcard /dev/nvidia0)
CONSTRAINTS := $(if $(HAS_GPU),,-c constraints.txt)

FAST := -m "not vllm and not servers and not slow" -n 2 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help setup engine quickstart test test-fast check format clean

help: ## Show this help
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/.installed: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.11, or call make PYTHON=python3.12"; exit 1; }
	@echo "==> setting up $(VENV) (client, server, development tools)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check -q --progress-bar off $(CONSTRAINTS) -e '.[server,quickstart,dev]' \
	  || { echo "==> pip failed. Is a package registry in reach, and are 3 GB free? Then run make again."; exit 1; }
	@touch $@

setup: $(VENV)/.installed ## Set up .venv

engine: setup ## Install vLLM into an environment of its own
	@$(BIN)/art-langgraph engine install

quickstart: engine ## Train the example agent and show that it got better; ARGS="--steps 4" passes options
	@$(BIN)/art-langgraph quickstart $(ARGS)

test: engine ## All tests, the real vLLM included
	@$(BIN)/python -m pytest $(FAST)
	@$(BIN)/python -m pytest -m "vllm or servers or slow" --durations=20

test-fast: setup ## The tests that take no minutes: without vLLM, `langgraph dev`, other people's MCP servers, kills
	@$(BIN)/python -m pytest $(FAST)

check: setup ## Lint, types, import layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: setup ## Format the code
	@$(BIN)/ruff check --fix -q . ; $(BIN)/ruff format .

clean: ## Remove what the other targets made here
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
