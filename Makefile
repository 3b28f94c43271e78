# One command per job; `make help` lists them. Needs nothing but Python 3.11 or newer: `.venv` is made on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.installed-base
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install -q --no-compile -c constraints.txt

# pip does not compile what it installs here: Python does at the first import, but not where this is set, and then every
# process takes 20 seconds for it.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo test test-contract test-engines test-notebooks canary bench check docs notebooks clean

help: ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

install: $(STAMP) ## Make .venv and install the package in it, with what the tests need.

# Threads that spin only shortly while they wait: not at all costs a third of the speed on idle cores, and without an
# end it makes training several times slower on a machine that does other work too.
demo: $(BASE) ## Train a translator on this machine (4 minutes on 2 cores), score it, use it, look inside.
	GOMP_SPINCOUNT=$${GOMP_SPINCOUNT:-20000} $(BIN)/vanillaformer demo

test: $(STAMP) ## Run the tests.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-contract: $(STAMP) ## Run transformers' own model tests on the three models (fetches its source with pip).
	$(PIP) -e '.[contract]'
	OMP_NUM_THREADS=1 $(BIN)/python tools/contract/run.py

test-engines: $(STAMP) ## Run every export on its engine, llama.cpp too (pip builds it: minutes, a C++ compiler).
	$(PIP) -e '.[ctranslate2,onnx,gguf,llama-cpp]'
	OMP_NUM_THREADS=1 TEST_ENGINES=all $(BIN)/python -m pytest -n 2 tests/conversion/exports

test-notebooks: $(STAMP) ## Run all notebooks as tests (5 minutes; `make test` runs two of them).
	OMP_NUM_THREADS=1 TEST_NOTEBOOKS=all $(BIN)/python -m pytest -n 2 tests/test_notebooks.py

canary: ## Run what depends on transformers on its newest release (TRANSFORMERS=5.24.0: on that one).
	$(PYTHON) -m venv .canary
	grep -v '^transformers==' constraints.txt > .canary/constraints.txt
	.canary/bin/python -m pip install -q --no-compile --upgrade -c .canary/constraints.txt -e '.[dev,contract]' \
		'transformers$(if $(TRANSFORMERS),==$(TRANSFORMERS))'
	OMP_NUM_THREADS=1 .canary/bin/python -m pytest -n 2 tests/conversion tests/modeling tests/acceleration tests/ecosystem \
		tests/scripts/test_native_models.py tests/scripts/test_translator_tokenizers.py \
		--deselect tests/ecosystem/test_ecosystem_page.py::test_versions_are_those_of_the_tests
	OMP_NUM_THREADS=1 .canary/bin/python tools/contract/run.py

bench: $(STAMP) ## Time training and decoding beside transformers, bare torch and CTranslate2 (a quarter of an hour).
	$(BIN)/python benchmarks/table.py --wait_idle 2

check: $(STAMP) ## Lint, format and types; print the lines and files of each folder beside its budget.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=src $(BIN)/mypy -p vanillaformer -m vanillaformer_cli
	@$(BIN)/python tools/lines.py

# Without executing the notebooks, and with the outputs of last time if there are some: make docs NOTEBOOKS=
NOTEBOOKS := notebooks
docs: $(STAMP) $(NOTEBOOKS) ## Build the site in build/docs: pages, notebooks, API (NOTEBOOKS= does not execute them again).
	OMP_NUM_THREADS=1 $(BIN)/python tools/documentation.py build/docs

notebooks: $(STAMP) ## Execute the notebooks of docs/notebooks; with their outputs they are in build/notebooks.
	OMP_NUM_THREADS=1 $(BIN)/python tools/notebooks.py

clean: ## Delete what was made here, but not the runs.
	rm -rf $(VENV) .canary .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info

# What the programs need. --no-compile: Python compiles the files it imports, a tenth of what is installed.
$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "vanillaformer needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1)."; \
		echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

# What the tests need besides. transformers imports torchao and bitsandbytes wherever they are installed, and both write
# warnings then: they are in a folder that only their tests look into.
$(STAMP): $(BASE)
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps --upgrade --target $(VENV)/quantizers torchao bitsandbytes
	@touch $@
