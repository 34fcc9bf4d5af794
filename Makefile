# Start with `make demo` or `make test`. Every target runs setup first, which takes no time when everything is installed.
PYTHON := .venv/bin/python
# Test processes; `make test JOBS=0` uses one process.
JOBS := 2

.PHONY: help setup demo test test-vllm test-areal lint evidence clean

help:
	@echo "make demo      set up, then train the bundled policy on local desktops: success before and after"
	@echo "make test      set up, then run the whole test suite"
	@echo "make setup     install missing Debian packages, and Python packages into .venv"
	@echo "make test-vllm set up, then run the tests against a real vLLM server"
	@echo "make test-areal set up, then run the tests against a real AReaL"
	@echo "make lint      set up, then check style (ruff) and types (pyright)"
	@echo "make evidence  set up, then run the full benchmarks and write docs/evidence/"
	@echo "make clean     remove .venv (keeps runs/)"

setup:
	@bash scripts/setup

demo: setup
	@$(PYTHON) -m deskhand demo $(ARGS)

# Tests of real applications are skipped if these two cannot be installed.
test: setup
	@$(PYTHON) -m deskhand desktop install calc chromium || true
	@$(PYTHON) -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder $(ARGS)

# Part of `make test`, with its metrics. The first run creates a virtual environment for vLLM (scripts/environment).
test-vllm: setup
	@$(PYTHON) -m pytest tests/contract/vllm -s $(ARGS)

# Part of `make test`. The first run creates a virtual environment of 2.3 GB for AReaL (scripts/environment).
test-areal: setup
	@$(PYTHON) -m pytest tests/contract/areal -s $(ARGS)

lint: setup
	@bash scripts/lint

evidence: setup
	@$(PYTHON) -m benchmarks.evidence $(ARGS)

clean:
	rm -rf .venv
