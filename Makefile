# Every target makes .venv on its first run and reuses it after. Words for the command go into ARGS:
#   make demo ARGS="--workers 8"      make test ARGS="tests/unit -x"
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.trueline-ready
PYTHON ?= $(shell for python in python3.11 python3 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)
ARGS ?=

.PHONY: help demo test check bench docs transcripts package release page
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -nE 's/^([a-z]+):[^#]*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(READY) ## watch a small language model train on local workers, right and wrong; writes trueline-demo/report.html
	$(BIN)/trueline demo --overwrite $(ARGS)

test: $(READY) ## run the tests of this commit's turn, three files at a time; of all turns: ARGS="--turn all"
	$(BIN)/python -m pytest -n 3 --dist loadfile $(ARGS)

check: $(READY) ## lint, format, types, imports, names
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --threads 2 --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python tools/names.py

bench: $(READY) ## measure costs and exact checks; rewrites the tables under benchmarks/ (one of them: ARGS=store)
	$(BIN)/python -m benchmarks $(ARGS)

docs: $(READY) ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

transcripts: $(READY) ## run the commands that pages show, and write what they print into the pages
	$(BIN)/python docs/transcripts.py $(ARGS)

package: $(READY) ## build dist/ twice, compare, and install it with and without torch
	$(BIN)/python tools/package.py

release: $(READY) ## VERSION=0.2.0: write the version and the changelog, print the notes; nothing is published
	$(BIN)/python tools/release.py $(VERSION)

page: $(READY) ## build the page of trueline view from web/ (needs Node 20)
	$(BIN)/python -m trueline.web.describe > web/openapi.json
	cd web && npm ci --silent --no-fund --no-audit && npm run --silent types && npm run --silent check && npm run --silent build

# torch goes first and alone; one that is already there is pinned as it is, whatever constraints.txt says, and so never replaced.
$(READY): pyproject.toml constraints.txt setup.py $(wildcard src/trueline/tensor/kernel/*.[ch])
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer found; pass PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "Making $(VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -m pip show --quiet torch 2>/dev/null || { echo "Installing torch (the first time takes minutes)"; \
		$(BIN)/python -m pip install --quiet -c constraints.txt torch; }
	@torch=$$($(BIN)/python -c 'from importlib.metadata import version; print(version("torch"))') \
		&& sed "s/^torch==.*/torch==$$torch/" constraints.txt > $(VENV)/constraints.txt
	@echo "Installing trueline and its tools"
	@$(BIN)/python -m pip install --quiet -c $(VENV)/constraints.txt -e '.[demo,dev,docs]'
	@touch $@
