# Two commands matter: `make demo` and `make test`. Both set everything up first; set-up is quick when it is done already.
PYTHON := .venv/bin/python
# So many processes share the tests, file by file; `make test JOBS=0` runs them one after the other in one.
JOBS := 2

.PHONY: help setup demo test test-vllm test-areal lint evidence clean

help:
	@echo "make demo      set up, then train the in-the-box policy on embedded desktops and show before and after"
	@echo "make test      set up, then run the whole test suite"
	@echo "make setup     install what is missing: Debian packages, .venv with the Python packages"
	@echo "make test-vllm the tests against a real vLLM server"
	@echo "make test-areal the tests against a real AReaL"
	@echo "make lint      set up, then check style (ruff) and types (pyright)"
	@echo "make evidence  set up, then run the full sizes and write docs/evidence/"
	@echo "make clean     remove .venv (runs/ is kept)"

setup:
	@bash scripts/setup

demo: setup
	@$(PYTHON) -m deskhand demo $(ARGS)

# Tests of real applications are skipped where these two cannot be installed; why they cannot is said before the tests start.
test: setup
	@$(PYTHON) -m deskhand desktop install calc chromium || true
	@$(PYTHON) -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder $(ARGS)

# A part of `make test`, with its figures. The first time it makes an environment for vLLM outside the checkout (scripts/environment).
test-vllm: setup
	@$(PYTHON) -m pytest tests/contract/vllm -s $(ARGS)

# A part of `make test`. The first time this makes an environment of 2.3 GB for AReaL outside the checkout (scripts/environment says where).
test-areal: setup
	@$(PYTHON) -m pytest tests/contract/areal -s $(ARGS)

lint: setup
	@bash scripts/lint

evidence: setup
	@$(PYTHON) -m benchmarks.evidence $(ARGS)

clean:
	rm -rf .venv
