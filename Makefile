# Every chore is one command. Each makes its own virtual environment in .venv; nothing is installed outside it.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
WORKERS ?= 2

.PHONY: help curves test test-long lint types docs check bench race format clean

help:             ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("natgrad needs Python 3.11 or newer; try make PYTHON=python3.12") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[paper,dev,docs]'
	@touch $@

curves: $(READY)  ## figure 3 of the paper, small: about five minutes, figure and table in runs/curves
	$(BIN)/natgrad run curves --preset small --out runs/curves --overwrite

# Nearly all of the tests' time is compilation: XLA's older code generator halves it. `make test-long` uses the usual one.
test: export XLA_FLAGS += --xla_cpu_use_fusion_emitters=false
test: $(READY)    ## the tests (at most 10 minutes on two cores)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --durations 15 -m "not long"

test-long: $(READY) ## long fuzzing and matrices (up to 2 hours)
	$(BIN)/python -m pytest -n $(WORKERS) -m long -rP

lint: $(READY)    ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)   ## types
	$(BIN)/mypy

docs: $(READY)    ## the documentation site, in site/index.html; warnings are errors
	$(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going docs site

check: lint types docs test ## everything CI runs

bench: $(READY)   ## speed, as ratios in one run (needs an otherwise idle machine)
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/metric_product.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/kronecker.py
	$(BIN)/python benchmarks/neighbour.py
	$(BIN)/python benchmarks/compiling.py
	$(BIN)/python benchmarks/counts.py

race: $(READY)    ## this library's recipe against Adam, Nesterov, L-BFGS by the clock (two and a half hours, idle machine; KFAC=python of an environment with kfac-jax)
	$(BIN)/python benchmarks/race.py $(if $(KFAC),--kfac $(KFAC))

format: $(READY)  ## rewrite the code in house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:            ## remove the virtual environment and caches
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache .hypothesis
