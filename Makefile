# Everything runs in a virtual environment of its own; PYTHON chooses the interpreter it is made from.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PEERS_VENV = .venv-peers
# All that the tests need, in one command: so that nothing pulls another torch than the pinned one.
EXTRAS = test,dashboard,deep,docs,parquet,peers,ray,tensorboard,video

# One core per process: parallelism belongs to the test runner, and timings stay comparable.
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1

.PHONY: help demo test lint format docs bench bench-peers bench-samples paper clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-13s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed  ## learn the LQR; the learning curve goes to demo.png
	$(BIN)/klimb run lqr --episodes 5000 --seed 0 --plot demo.png

# Ray gives up where a loaded machine lets it wait: its cluster of two nodes has both cores to itself.
test: lint  ## everything that continuous integration runs
	$(BIN)/python -m pytest -n 2 --dist worksteal --ignore tests/test_cluster.py
	$(BIN)/python -m pytest tests/test_cluster.py

lint: $(VENV)/.installed-test  ## style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.installed-test  ## mend what can be mended by a tool
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.installed-test  ## the documentation as a site, in site/; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(VENV)/.installed-test  ## the tables of benchmarks/
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/tasks.py
	$(BIN)/python benchmarks/physics.py
	$(BIN)/python benchmarks/baselines.py
	$(BIN)/python benchmarks/dashboard.py
	$(BIN)/python benchmarks/scale.py

# MushroomRL pins packages that klimb cannot use, and a torch that would come with CUDA: an environment of its own,
# with what it imports and no more. numpy 1.24 has wheels up to Python 3.11.
$(PEERS_VENV)/.installed:
	$(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check numpy==1.24.4 scipy==1.15.2 \
	    scikit-learn==1.6.1 matplotlib==3.10.1 joblib==1.4.2 tqdm==4.67.1 pygame opencv-python-headless torch==2.13.0
	$(PEERS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps mushroom-rl==1.10.2
	@touch $@

bench-peers: $(VENV)/.installed-test $(PEERS_VENV)/.installed  ## beside MushroomRL, pycma, scikit-learn: docs/performance.md
	$(BIN)/python benchmarks/peers.py --mushroom $(PEERS_VENV)/bin/python

bench-samples: $(VENV)/.installed-test  ## the league table of searches: run what is missing of it (hours), then report
	$(BIN)/python benchmarks/samples.py --workers 2 --publish

paper: $(VENV)/.installed  ## rerun what is missing of the paper (hours), draw its figures, judge its claims
	$(BIN)/klimb reproduce all --figures docs/figures
	$(BIN)/klimb claims

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(PEERS_VENV) build dist site demo.png .hypothesis .mypy_cache .pytest_cache .ruff_cache
