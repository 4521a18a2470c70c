# Two commands for a newcomer, each from a fresh clone: `make demo`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

FRAMEWORKS := $(addprefix build/frameworks/,shared verl openrlhf skyrl areal rllib) $(addprefix build/trl/,0.29.0 1.9.0 1.14.0)

QUICKSTARTS := $(addprefix build/quickstart/,mlflow wandb trackio tensorboard)

PIP_ALONE := $(BIN)/pip install --quiet --disable-pip-version-check --no-deps

PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: frameworks demo test test-long check lint types fast docs evidence bench screenshots clean

demo: $(VENV)/.demo  ## train a small tool-using agent and watch it in MLflow and W&B
	$(BIN)/tracker-diag demo

test: $(VENV)/.dev $(FRAMEWORKS) $(QUICKSTARTS)  ## everything, with real servers, a browser and training runs
	$(PYTEST)

test-long: $(VENV)/.dev  ## the properties, with twenty times as many examples; for the night
	$(PYTEST) -m hypothesis --hypothesis-profile long --timeout 7200

check: lint types fast  ## what every change must pass first

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy
	$(BIN)/pyright

fast: $(VENV)/.dev
	$(PYTEST) -m "not slow" -q

docs: $(VENV)/.dev  ## the generated pages
	$(BIN)/python docs/generate.py

evidence: $(VENV)/.dev  ## the figures of docs/evidence.md, about half an hour
	$(BIN)/python docs/make_evidence.py

bench: $(VENV)/.dev  ## the benchmark table, build/bench.json and docs/performance.md
	OMP_NUM_THREADS=1 $(BIN)/python tests/benchmarks/bench.py

screenshots: $(VENV)/.dev  ## the README's picture, from a real MLflow server
	$(BIN)/python docs/make_screenshots.py

# torch first and pinned: a bare `torch` may bring several gigabytes of CUDA.
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) --editable ".[demo]"
	touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	$(PIP) --editable ".[dev]"
	touch $@ $(VENV)/.demo

frameworks: $(FRAMEWORKS)  ## trainers that cannot be installed beside each other, for their tests

build/frameworks/%: tests/integrations/requirements/%.txt $(VENV)/.dev
	rm -rf $@
	$(PIP_ALONE) --target $@ --requirement $<
	touch $@

build/trl/%: $(VENV)/.dev
	rm -rf $@
	$(PIP_ALONE) --target $@ trl==$*
	touch $@

# What a user of one tracker has: its extra, and nothing else. TensorBoard's writer is torch's.
build/quickstart/tensorboard: EXTRAS = tensorboard,torch
build/quickstart/%: EXTRAS = $*
build/quickstart/%: constraints.txt pyproject.toml $(VENV)/.dev
	rm -rf $@
	$(PYTHON) -m venv --without-pip $@
	$(BIN)/pip --python $@ install --quiet --disable-pip-version-check --constraint constraints.txt ".[$(EXTRAS)]"
	touch $@

clean:
	rm -rf $(VENV) build dist demo-out .tracker_diag
