# `make help` lists the targets. Everything is set up on first use and kept up to date by the stamp files.
PYTHON ?= $(or $(shell .ci/python),$(error Python 3.11 or newer is missing: install it, or name it: make PYTHON=/path/to/python3))
VENV := .venv
BIN := $(VENV)/bin
# The versions of packages that all tests passed with, so that a release of another project breaks nothing here unseen.
# `make clean setup LATEST=1` takes the newest that pyproject.toml permits instead.
VERSIONS := .ci/versions.txt
# pip does not compile here (few modules are ever imported), so Python must keep the bytecode of those that are. Without
# it, each start of a trainer would compile torch, peft and transformers again: 10 s of processor time instead of 4.
export PYTHONDONTWRITEBYTECODE :=

# Two processes keep two cores busy with what computes; a third one fills the time in which tests wait for processes,
# downloads and time limits. Threads of one process that wait for a displaced thread of theirs burn a core: where
# processes share cores, each computes on one thread, vLLM too. And trainers compute at normal priority: at a low one they
# would wait for the tests beside them.
FAST := -m "not vllm and not servers and not slow" -n 3 --dist loadfile --timeout 300 --durations=20
SLOW := -m "slow or servers or vllm" -n 3 --dist loadfile --no-loadscope-reorder --durations=40
SHARING := OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind ART_TRAINER_LOW_PRIORITY=0

.DEFAULT_GOAL := help
.PHONY: help setup lock engine quickstart examples test test-fast test-slow vllm-table fuzz check docs sbom audit release format clean

help: ## Show this help
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/.installed: pyproject.toml $(VERSIONS)
	@echo "==> setting up $(VENV) (client, server, development tools)"
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check -q --progress-bar off --upgrade pip
	@$(BIN)/python -m trainer_server.process.cpu_torch
	@.ci/install $(BIN)/python $(if $(LATEST),,$(VERSIONS))
	@touch $@

setup: $(VENV)/.installed ## Set up .venv

# mlflow, which is not in .venv, holds three packages back in the lock of all extras.
UV := $(VENV)/uv
HELD_BACK := packaging|pillow|pyarrow
lock: setup ## Write the versions of packages in .venv to .ci/versions.txt and uv.lock, once all tests have passed with them
	@{ echo "# \`make lock\` writes this file: the packages of .venv that all tests passed with."; \
	  $(BIN)/python -m pip freeze -q --exclude-editable | grep -vE '^(#|torch=|triton|nvidia|cuda)' ; } > $(VERSIONS)
	@test -x $(UV)/bin/uv || { "$(PYTHON)" -m venv $(UV) && \
	  $(UV)/bin/pip install --disable-pip-version-check -q --progress-bar off 'uv>=0.9'; }
	@$(UV)/bin/uv lock -q $$(grep -E '^[A-Za-z0-9._-]+==[^;]+$$' $(VERSIONS) | grep -vE '^($(HELD_BACK))==' | sed 's/^/-P /')
	@echo "$(VERSIONS) uv.lock"

engine: setup ## Install vLLM into an environment of its own
	@$(BIN)/art-langgraph engine install

quickstart: engine ## Train the example agent and show that it got better; ARGS="--steps 4" passes options
	@$(BIN)/art-langgraph quickstart $(ARGS)

# The metrics files in the folders of the examples are of whole runs: short ones write elsewhere.
EXAMPLES := $(patsubst examples/%/__main__.py,%,$(wildcard examples/*/__main__.py))
SHORT := --seeds 1 --steps 2 --held-out 24
$(EXAMPLES:%=example-%): example-%: engine
	@$(BIN)/python -m art_examples.$* $(SHORT) --out runs/examples/$* $(ARGS)

# One server for all of them: its start is paid once.
examples: engine ## Train all examples for two steps; `make example-NAME` trains one, ARGS="--steps 4" passes options
	@$(BIN)/python -m art_examples $(SHORT) $(ARGS)

# Both lanes run, whatever fails: who waited half an hour wants to know of all failures.
test: engine ## All tests, the real vLLM included
	@echo "==> the fast tests"; failed=0; \
	$(MAKE) --no-print-directory test-fast || failed=1; \
	echo "==> the slow tests: the real vLLM, processes that are killed, other people's servers and versions"; \
	$(MAKE) --no-print-directory test-slow || failed=1; \
	exit $$failed

test-fast: setup ## The tests that take no minutes: without vLLM, `langgraph dev`, other people's MCP servers, kills
	@$(SHARING) $(BIN)/python -m pytest $(FAST)

test-slow: engine ## The other tests
	@$(SHARING) $(BIN)/python -m pytest $(SLOW)

vllm-table: setup ## Check the table of vLLM's versions against their wheels (eleven and more of 250 MB); ARGS=--write writes it
	@$(BIN)/python -m tests.support.engines.wheels $(ARGS)

# What is drawn follows from the tests, so that every run of a change draws the same. Here it is drawn by chance.
FUZZ ?= 50
fuzz: setup ## Fuzz for hours: FUZZ times as many examples as `make test` draws (50), others each time
	@ART_FUZZ=$(FUZZ) $(SHARING) $(BIN)/python -m pytest -q -n 2 --dist loadfile --timeout 0 \
	  $$(grep -rlE '^from hypothesis import|tests.support.fuzzing' tests --include='test_*.py' | sort)

# The client runs on Windows and macOS too: mypy knows what the standard library does not have there. Other packages are
# not read for this, which takes a quarter of the time; the errors that are ignored come of that.
CLIENT := -p art_langgraph -p art_mcp -p trainer_server.common -p trainer_server.trackers -p trainer_server.tracking -p trainer_server.wire -p trainer_server.commands
ELSEWHERE := --config-file= --follow-imports skip --ignore-missing-imports \
  --disable-error-code valid-type --disable-error-code misc

check: setup docs ## Lint, types, import layers, names, documentation
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@for system in win32 darwin; do \
	  $(BIN)/mypy $(ELSEWHERE) --platform $$system --cache-dir .mypy_cache/$$system $(CLIENT) || exit 1; done
	@$(BIN)/lint-imports
	@$(BIN)/python .ci/names

# Read from the source, without the packages that the source imports: an environment of its own suffices.
SITE := $(VENV)/docs
$(SITE)/.installed: pyproject.toml
	@echo "==> setting up $(SITE) (mkdocs)"
	@test -x $(SITE)/bin/python || "$(PYTHON)" -m venv $(SITE)
	@$(SITE)/bin/python -m pip install --disable-pip-version-check -q --progress-bar off --upgrade pip
	@$(SITE)/bin/python -m pip install -q --progress-bar off --group docs
	@touch $@

# Without -q: it hides warnings from --strict too, so that a link that leads nowhere would pass.
docs: $(SITE)/.installed ## Build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build && echo "site/index.html"

# The tool has an environment of its own, so that the list has none of its packages.
SBOM := $(VENV)/sbom
sbom: setup ## Write the packages of .venv with versions and licences to sbom.json (CycloneDX)
	@test -x $(SBOM)/bin/cyclonedx-py || { "$(PYTHON)" -m venv $(SBOM) && \
	  $(SBOM)/bin/pip install --disable-pip-version-check -q --progress-bar off 'cyclonedx-bom>=7,<8'; }
	@$(SBOM)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o sbom.json $(BIN)/python
	@echo "sbom.json"

AUDIT := $(VENV)/audit
audit: setup ## Ask OSV for advisories about the packages of .venv (pip-audit); skipped, and said so, without a network
	@test -x $(AUDIT)/bin/pip-audit || { "$(PYTHON)" -m venv $(AUDIT) && \
	  $(AUDIT)/bin/pip install --disable-pip-version-check -q --progress-bar off 'pip-audit>=2.9,<3'; }
	@.ci/audit $(AUDIT)/bin/pip-audit $(wildcard $(VENV)/lib/python*/site-packages)

release: ## Build sdist and wheel, and try the wheel in a clean environment; QUICKSTART=1 also takes a step from it (vLLM)
	@PYTHON="$(PYTHON)" .ci/release

format: setup ## Format the code
	@$(BIN)/ruff check --fix -q . ; $(BIN)/ruff format .

clean: ## Remove what the other targets made here
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
