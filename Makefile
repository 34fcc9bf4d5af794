# Start with `make demo` or `make test`. Every target runs setup first, which takes no time when everything is installed.
PYTHON := .venv/bin/python
# Test processes; `make test JOBS=0` uses one process.
JOBS := 2

.PHONY: help setup demo test test-peers lint evidence clean

help:
	@echo "make demo       set up, then train the bundled policy on local desktops: success before and after"
	@echo "make test       set up, then run the whole test suite"
	@echo "make setup      install missing Debian packages, and Python packages into .venv"
	@echo "make test-peers set up, then run only the tests against real peers (vLLM, AReaL, OSWorld), with their output"
	@echo "make lint       set up, then check style (ruff), layers (import-linter) and types (pyright)"
	@echo "make evidence   set up, then run the full benchmarks and write docs/evidence/"
	@echo "make clean      remove .venv (keeps runs/)"

setup:
	@bash scripts/setup

demo: setup
	@$(PYTHON) -m deskhand demo $(ARGS)

# Tests of real applications are skipped if these two cannot be installed.
test: setup
	@$(PYTHON) -m deskhand desktop install calc chromium || true
	@$(PYTHON) -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder $(ARGS)

# A part of `make test`, with the figures that it prints. The first run creates the peers' virtual environments
# (scripts/environment), 2.3 GB for AReaL alone. One peer: `make test-peers ARGS="-k vllm"`.
test-peers: setup
	@$(PYTHON) -m pytest tests/contract -s $(ARGS)

lint: setup
	@bash scripts/lint

evidence: setup
	@$(PYTHON) -m benchmarks.evidence $(ARGS)

clean:
	rm -rf .venv
