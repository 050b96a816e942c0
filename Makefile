# Every target does its own set-up: a virtual environment in .venv, made again whenever
# pyproject.toml or constraints.txt change. Needed beforehand: Python 3.10 or newer, with pip.

PYTHON ?= python3
EXTRAS ?= all
WORKERS ?= 2
PYTEST_ARGS ?=
BENCH_ARGS ?=
SOAK_ARGS ?=
GALLERY_ARGS ?=
RELEASE_ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
READY := .venv/.ready-$(EXTRAS)
READY_BENCH := .venv/.ready-bench
READY_GALLERY := .venv/.ready-gallery
DOCS := .venv-docs/bin
READY_DOCS := .venv-docs/.ready
RELEASE := .venv-release/bin
READY_RELEASE := .venv-release/.ready
OTHER_FRAMEWORKS := tests/test_jax_*.py tests/test_tf_*.py tests/test_parity*.py \
	src/neuralsort/jax/* src/neuralsort/tf/* docs/frameworks.md

.DEFAULT_GOAL := help
.PHONY: help install quickstart test test-quick test-all test-torch soak lint format bench gallery pages docs docs-serve dist check-files release-check clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: PYTHON=$(PYTHON) EXTRAS=$(EXTRAS) WORKERS=$(WORKERS) PYTEST_ARGS=$(PYTEST_ARGS) BENCH_ARGS=$(BENCH_ARGS)"

install: $(READY)  ## Set up .venv with every extra (EXTRAS=torch for fewer)

quickstart: $(READY)  ## Train on handwritten numbers in minutes: tables, and report/index.html
	$(BIN)/neuralsort quickstart

# One thread per worker: the lists in tests are short, and workers would fight over the cores.
# Files stay together, for what their tests share; a worker that has nothing left takes from another.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test: $(READY)  ## Run the tests, and the examples in docstrings and docs
	$(PYTEST) $(PYTEST_ARGS)

test-quick: $(READY)  ## Run the laws in PyTorch, on few examples each
	$(PYTEST) -m quick --hypothesis-profile=quick tests $(PYTEST_ARGS)

# With an empty XLA_FLAGS, programs of JAX are optimised as they are for users.
test-all: $(READY)  ## Run the tests, also in the long forms that `make test` has in small
	XLA_FLAGS= $(PYTEST) -m "" --hypothesis-profile=long $(PYTEST_ARGS)

test-torch:  ## Run the tests of PyTorch alone; JAX and TensorFlow need not be there
	$(MAKE) test EXTRAS=experiments PYTEST_ARGS="$(OTHER_FRAMEWORKS:%=--ignore-glob=%) $(PYTEST_ARGS)"

# SOAK_ARGS="--first 2000" goes on with other problems.
soak: $(READY)  ## Check random rows of 2,000 random problems of long lists (hours)
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tests.soak $(SOAK_ARGS)

lint: $(READY)  ## Check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(READY)  ## Rewrite the code in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY_BENCH)  ## Compare with other ways to sort softly
	$(BIN)/python -m benchmarks $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.frameworks

# GALLERY_ARGS="jigsaw" runs one of them.
gallery: $(READY_GALLERY)  ## Run the notebooks of the gallery and write their pages (a quarter of an hour)
	$(BIN)/python -m examples.gallery $(GALLERY_ARGS)

pages: $(READY)  ## Write the report and the tables of the docs from the lines in results/
	$(BIN)/neuralsort report --results results --out docs/report
	$(BIN)/python -m benchmarks.pages

# The site reads the sources and imports nothing of them, so it has a small environment of its own.
docs: $(READY_DOCS)  ## Build the site in site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(DOCS)/mkdocs build --strict

docs-serve: $(READY_DOCS)  ## Show the site at http://127.0.0.1:8000, anew after every change
	NO_MKDOCS_2_WARNING=1 $(DOCS)/mkdocs serve --watch src --watch CONTRIBUTING.md --watch CHANGELOG.md

dist: $(READY_RELEASE)  ## Build sdist and wheel in dist/
	rm -rf dist
	$(RELEASE)/python -m build

# Hosted CI cannot run here; a schema says at least whether its files can be read.
check-files: $(READY_RELEASE)  ## Check the files of hosted CI, the templates and CITATION.cff
	$(RELEASE)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(RELEASE)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(RELEASE)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff

# RELEASE_ARGS="--only jax" tries fewer extras.
release-check: $(READY_RELEASE) check-files  ## Build, then install and try the wheel alone, one extra at a time
	$(RELEASE)/python -m tests.release $(RELEASE_ARGS)

clean:  ## Remove .venv, caches and everything generated
	rm -rf .venv .venv-docs .venv-release site report dist .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 10) or sys.exit(f"neuralsort needs Python 3.10 or newer, but $(PYTHON) is {v[0]}.{v[1]}. Try: make PYTHON=python3.11 ...")'
	@echo "Setting up .venv with the extra '$(EXTRAS)'. The first time takes a few minutes."
	$(PYTHON) -m venv .venv
	$(PIP) install --quiet --upgrade --constraint constraints.txt pip
	$(PIP) install --quiet --constraint constraints.txt --editable ".[$(EXTRAS)]" --group dev
	@touch $@

$(READY_BENCH): $(READY)
	$(PIP) install --quiet --constraint constraints.txt --group bench
	@touch $@

$(READY_GALLERY): $(READY)
	$(PIP) install --quiet --constraint constraints.txt --group gallery
	@touch $@

# The tools of the site and of releases, each in an environment of its own: .venv-docs, .venv-release.
.venv-%/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"These tools need Python 3.11 or newer, but $(PYTHON) is {v[0]}.{v[1]}. Try: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --upgrade --constraint constraints.txt pip
	.venv-$*/bin/python -m pip install --quiet --constraint constraints.txt --group $*
	@touch $@
