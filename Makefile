# Two commands for a newcomer, each from a fresh clone: `make demo`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
UV := $(BIN)/uv pip install --quiet --constraint constraints.txt

# For `make nightly`: a fresh environment for each tracker, and for trainers that cannot share one.
FRAMEWORKS := $(addprefix build/frameworks/,shared verl openrlhf skyrl areal rllib verl-0.7 verl-0.8 openrlhf-0.10 \
	skyrl-0.4 trl-0.29 trl-1.9 trl-1.14 agents)
QUICKSTARTS := $(addprefix build/quickstart/,mlflow wandb trackio tensorboard panels replay notify mcp)

# Databases and journals in memory, if 4 GB are free: on a disk each commit of SQLite waits.
MEMORY := $(shell df --output=avail -k /dev/shm 2>/dev/null | awk 'NR == 2 && $$1 > 4000000 {print "/dev/shm"}')
# One worker more than cores, as many tests wait for other processes. Each worker takes 15 s to import all tests.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(if $(MEMORY),TMPDIR=$(MEMORY)) $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

.PHONY: demo test check nightly browser lint types fast faults alerts docs matrix evidence guards-study bench screenshots site clean

demo: $(VENV)/.demo  ## train a small tool-using agent and watch it in MLflow and W&B
	$(BIN)/tracker-diag demo

test: $(VENV)/.dev browser  ## with real servers, a browser and training
	$(PYTEST) -m "not nightly"

check: lint types fast  ## what every change must pass first

nightly: $(VENV)/.dev $(QUICKSTARTS) $(FRAMEWORKS) browser  ## the tests that `test` leaves out, docs/chaos.json and docs/soak.json; hours
	$(BIN)/pyright
	$(PYTEST) -m nightly --timeout 3600
	$(PYTEST) -m hypothesis --hypothesis-profile long --timeout 7200
	$(BIN)/python tests/chaos/chaos.py --programs 1000 --out docs/chaos.json
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore tests/chaos/soak.py --steps 100000 --out docs/soak.json

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/prose.py  # plain English in what people read
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict  # no page, link or anchor is missing

types: $(VENV)/.dev
	$(BIN)/mypy

fast: $(VENV)/.dev
	$(PYTEST) --numprocesses 2 -m "not slow and not nightly" -q

# Without Chromium, the tests that need it fail. All others run.
browser:
	@which chromium chromium-browser google-chrome | grep -q . || { test "$$(id -u)" = 0 && command -v apt-get && apt-get update -qq && \
		apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } >/dev/null || \
		echo "chromium is missing: as root, apt-get install chromium. The tests that need it will fail, all others run."

faults: $(VENV)/.dev  ## scores the planted faults, build/faults.json; two minutes
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore tests/faults/score.py

alerts: $(VENV)/.dev  ## how alarms judge 9,400 runs, docs/alerts.json; hours, and it resumes where it stopped
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore tests/benchmarks/door.py --runs 200 --kept build/alerts.jsonl --out docs/alerts.json

docs: $(VENV)/.dev  ## the generated pages
	$(BIN)/python docs/generate.py

site: docs  ## all pages as a site that can be searched, build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

matrix: $(VENV)/.dev $(FRAMEWORKS)  ## docs/matrix.md: which alerts of which framework reach which tracker; five minutes
	rm -f build/matrix.jsonl
	MATRIX=$(CURDIR)/build/matrix.jsonl $(PYTEST) -m matrix
	$(BIN)/python docs/make_matrix.py build/matrix.jsonl

evidence: $(VENV)/.dev  ## the figures of docs/evidence.md, about half an hour
	$(BIN)/python docs/make_evidence.py

guards-study: $(VENV)/.dev  ## what guards do to training, docs/guards.json; half an hour, and it resumes where it stopped
	OMP_NUM_THREADS=1 TRACKER_DIAG_QUIET=1 $(BIN)/python -W ignore docs/make_guards.py

bench: $(VENV)/.dev  ## the benchmark table, build/bench.json and docs/performance.md
	OMP_NUM_THREADS=1 $(BIN)/python tests/benchmarks/bench.py

screenshots: $(VENV)/.dev  ## the README's picture, from a real MLflow server
	$(BIN)/python docs/make_screenshots.py

# torch first, pinned and by pip: a bare `torch` may bring several gigabytes of CUDA. For the rest uv is ten times faster.
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch uv
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml hatch_build.py tracker_diag/stats/kernel.c
	$(UV) --python $(VENV) --editable ".[demo]"
	touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml hatch_build.py tracker_diag/stats/kernel.c
	$(UV) --compile-bytecode --python $(VENV) --editable ".[dev]"
	touch $@ $(VENV)/.demo

build/frameworks/skyrl-0.4: FOR := --python-version 3.12  # what its metadata asks for; its modules run with less
build/frameworks/%: tests/integrations/requirements/%.txt $(VENV)/.dev
	rm -rf $@
	$(BIN)/uv pip install --quiet --no-deps $(FOR) --target $@ --requirement $<
	touch $@

# The environment of a user: one extra, and nothing else. TensorBoard's writer is torch's.
build/quickstart/%: constraints.txt pyproject.toml $(VENV)/.torch
	rm -rf $@
	$(PYTHON) -m venv --without-pip $@
	$(if $(filter tensorboard,$*),$(BIN)/pip --python $@ install --quiet --no-compile --constraint constraints.txt torch)
	$(UV) --python $@ ".[$*]"
	touch $@

clean:
	rm -rf $(VENV) build dist demo-out .tracker_diag
