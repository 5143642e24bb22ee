# Every chore is one command. Each makes its own virtual environment in .venv; nothing is installed outside it.
PYTHON ?= python3
PYTHON311 ?= $(or $(shell command -v python3.11),$(PYTHON))
BIN := .venv/bin
READY := .venv/.ready
OLDEST := .cache/oldest
WORKERS ?= 2

.PHONY: help curves quick test test-long test-oldest lint types docs check numbers notebooks dist bench race arena format clean

help:             ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 14

$(READY): pyproject.toml paper/pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("natgrad needs Python 3.11 or newer; try make PYTHON=python3.12") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]' -e ./paper
	@touch $@

curves: $(READY)  ## figure 3 of the paper, small: five to seven minutes, figure and table in runs/curves
	$(BIN)/natgrad run curves --seeds 3 --out runs/curves --overwrite

# Nearly all of the tests' time is compilation. XLA's older code generator halves it (`make test-long` uses the usual one),
# and what is compiled is kept in .cache, so that a second run is much shorter.
quick test: export XLA_FLAGS += --xla_cpu_use_fusion_emitters=false
quick: $(READY)   ## the tests to run while working: about a minute on two cores
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not long and not slow"

test: $(READY)    ## the tests (at most 10 minutes on two cores, then less)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --durations 15 -m "not long"

test-long: $(READY) ## long fuzzing and matrices (up to 2 hours)
	$(BIN)/python -m pytest -n $(WORKERS) -m long -rP

$(OLDEST)/.ready: pyproject.toml paper/pyproject.toml oldest.txt
	$(PYTHON311) -c 'import sys; sys.exit("the oldest versions need Python 3.11; try make test-oldest PYTHON311=/path/to/python3.11") if sys.version_info[:2] != (3, 11) else None'
	$(PYTHON311) -m venv --clear $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -r oldest.txt -e . -e ./paper
	@touch $@

test-oldest: $(OLDEST)/.ready ## the quick tests with the oldest versions of everything that pyproject.toml allows
	JAX_COMPILATION_CACHE_DIR= $(OLDEST)/bin/python -m pytest -W ignore::DeprecationWarning -m "not long and not slow"

lint: $(READY)    ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)   ## types
	$(BIN)/mypy

docs: $(READY)    ## the documentation site, in site/index.html; warnings are errors
	$(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going -d .cache/doctrees docs site

check: lint types docs test ## everything CI runs

numbers: $(READY) ## the numbers in README, docs and results, and README's picture, from the logs in results/
	$(BIN)/python tools/fill_numbers.py
	$(BIN)/python tools/draw_front.py

notebooks: $(READY) ## run the notebooks, and keep what they print and draw
	$(BIN)/python tools/run_notebooks.py

dist: $(READY)    ## sdist and wheel of natgrad and natgrad-paper, in dist/; each tried in an empty environment
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m build --no-isolation --outdir dist paper
	$(BIN)/python tools/try_distributions.py dist

bench: BEFORE ?= 610a1f1
bench: $(READY)   ## speed, as ratios in one run (needs an otherwise idle machine); BEFORE is the older commit beside
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/metric_product.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/kronecker.py
	$(BIN)/python benchmarks/neighbour.py
	$(BIN)/python benchmarks/orthonormal.py
	$(BIN)/python benchmarks/compiling.py
	$(BIN)/python benchmarks/counts.py
	$(BIN)/python benchmarks/against.py $(BEFORE) --rounds 3

race: $(READY)    ## KNCG against tuned first-order methods, by the clock (needs an otherwise idle machine)
	$(BIN)/natgrad run race --out runs/race

arena: $(READY)   ## ten problems, nothing chosen by hand (hours, idle machine); make arena MNIST=DIRECTORY of its idx files
	$(BIN)/natgrad run arena --seeds 3 --out runs/arena $(if $(MNIST),--data $(MNIST))

format: $(READY)  ## rewrite the code in house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:            ## remove the virtual environment and caches
	rm -rf .venv .cache site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
