# `make demo` and `make test` do all set-up: a virtual environment, the pinned packages, this one.
PYTHON ?= python3
VENV ?= .venv
# a package index to take torch from, for example one that serves CPU-only builds
TORCH_INDEX ?=
MINUTES ?= 10
COMPARE ?=

BIN := $(abspath $(VENV))/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
TORCH := $(shell grep '^torch==' requirements.txt)

.PHONY: demo test lint clean

demo: $(VENV)/current  ## train a small German-English Lite Transformer and translate with it
	PATH="$(BIN):$$PATH" MINUTES="$(MINUTES)" COMPARE="$(COMPARE)" bash examples/quickstart/run.sh

test: $(VENV)/current lint
	PATH="$(BIN):$$PATH" OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

lint: $(VENV)/current
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# made again when a requirement changes; torch first, so that nothing else chooses its build
$(VENV)/current: requirements.txt setup.py
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if v in ((3, 11), (3, 12)) else \
	  "Python %d.%d found; 3.11 or 3.12 is needed: make PYTHON=python3.11 ..." % v)'
	@echo "setting up $(VENV): a few minutes, once"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	@$(PIP) -r requirements.txt
	@$(PIP) --no-deps --editable .
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info examples/*/work
