# Start with `make demo` or `make test`. Every target runs setup first, which takes no time when everything is installed.
PYTHON := .venv/bin/python
# Test processes: one more than the two cores, since tests wait for programs and clocks. JOBS=0 uses one process.
JOBS := 3

.PHONY: help setup demo test test-peers lint evidence gpu docs clean

help:
	@echo "make demo       set up, then train the bundled policy on local desktops: success before and after"
	@echo "make test       set up, then run the whole test suite"
	@echo "make setup      install missing Debian packages, and Python packages into .venv"
	@echo "make test-peers set up, then run only the tests against real peers (vLLM, AReaL, OSWorld), with their output"
	@echo "make lint       set up, then check style (ruff), layers (import-linter) and types (pyright)"
	@echo "make evidence   set up, then run the full benchmarks and write docs/evidence/"
	@echo "make gpu        set up, then run what needs a GPU, in at most 40 minutes, and write its pages of docs/evidence/"
	@echo "make docs       build the documentation as a site, in build/site"
	@echo "make clean      remove .venv (keeps runs/)"

setup:
	@bash scripts/setup

demo: setup
	@$(PYTHON) -m deskhand demo $(ARGS)

# Tests of real applications are skipped if these cannot be installed. A failed test is repeated once: one that then
# passes is printed with its traceback (`make test ARGS=--fail-on-flaky` fails instead).
test: setup
	@$(PYTHON) -m deskhand desktop install calc chromium chromium-shell panel || true
	@$(PYTHON) -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder --reruns 1 --rerun-show-tracebacks $(ARGS)

# A part of `make test`, with the figures that it prints. The first run creates the peers' virtual environments
# (scripts/environment), 2.3 GB for AReaL alone. One peer: `make test-peers ARGS="-k vllm"`.
test-peers: setup
	@$(PYTHON) -m pytest tests/contract -s $(ARGS)

lint: setup
	@bash scripts/lint

evidence: setup
	@$(PYTHON) -m benchmarks.evidence $(ARGS)

# Without a GPU: `make gpu ARGS=--smoke` rehearses every part on the processor.
gpu: setup
	@$(PYTHON) -m benchmarks.gpu_pages $(ARGS)

# mkdocs is in an environment of its own; `make test` builds the site too, and checks its links.
docs:
	@NO_MKDOCS_2_WARNING=1 "$$(bash scripts/environment docs)/bin/python" -m mkdocs build --strict
	@echo "open build/site/index.html, or for the search: python3 -m http.server -d build/site"

clean:
	rm -rf .venv
