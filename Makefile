# Every target sets up what it needs; a second call reuses it. `make help` lists them.
# `make PYTHON=python3.12 VENV=.venv312 test` uses another interpreter.

PYTHON    ?= python3
FE_PYTHON ?= $(PYTHON)
VENV      ?= .venv
FE_VENV   ?= .venv-fe
DOCS_VENV ?= .venv-docs
NEWEST_VENV ?= .venv-newest

# What `make sanitize` runs.
KERNEL_TESTS ?= $(patsubst src/fastnet/%.pyx,tests/test%.py,$(wildcard src/fastnet/_*.pyx))

BIN    := $(VENV)/bin
# pip would compile every file; most are never imported, and those that are get compiled then.
PIP    := -m pip --quiet --disable-pip-version-check install --no-compile
KERNEL := setup.py $(wildcard src/fastnet/*.pyx src/fastnet/*.pxd)

# Timings are made on one thread, so that they compare from machine to machine; tests share the cores.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

# Test files are shared out between a process for each core, in the order that tests/conftest.py says.
PYTEST := -m pytest --numprocesses=logical --maxprocesses=4 --dist=loadfile --no-loadscope-reorder

# TensorFlow tells at each start how it was compiled; warnings and errors still show.
export TF_CPP_MIN_LOG_LEVEL ?= 1

# Else each process would compile what it imports, all of TensorFlow say, again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo demo-tf demo-distributed setup test test-nightly test-fast test-fe test-newest-torch
.PHONY: lint typecheck build
.PHONY: packages fe-packages bench-packages bench bench-quick instructions annotate sanitize docs dist clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.has-demo build  ## set up, and train a network on real data
	$(BIN)/fastnet demo

demo-tf: $(VENV)/.has-demo-tf build  ## the same in TensorFlow
	$(BIN)/fastnet demo --framework tf

demo-distributed: $(VENV)/.has-demo build  ## train in two processes, and in one
	$(ONE_THREAD) $(BIN)/torchrun --standalone --nproc_per_node=2 examples/distributed.py

setup: $(VENV)/.has-dev build  ## the environment that CONTRIBUTING.md speaks of

# The checks keep one core busy beside the first tests.
test: setup  ## set up, check style and types, run the tests and doctests
	@$(MAKE) --no-print-directory lint & lint=$$!; \
	$(ONE_THREAD) $(BIN)/python $(PYTEST) -m "not slow" --ignore=tests/integrations; tests=$$?; \
	wait $$lint && exit $$tests

# The files that have tests with a mark of their own, and not by way of another module: collecting
# all files takes half a minute.
marked = $$(grep -rl --include='test_*.py' 'mark\.$(1)' tests | grep -v ^tests/integrations/)

test-nightly: setup $(FE_VENV)/.has-fe  ## run the slow tests, which .ci/run leaves out
	$(ONE_THREAD) $(BIN)/python $(PYTEST) -m slow $(call marked,slow)
	@$(MAKE) --no-print-directory build VENV=$(FE_VENV) PYTHON=$(FE_PYTHON)
	$(ONE_THREAD) $(FE_VENV)/bin/python $(PYTEST) -m slow tests/integrations

test-fast: setup  ## run the tests that touch every public name, within a minute
	$(ONE_THREAD) $(BIN)/python $(PYTEST) -m fast $(call marked,fast)

test-newest-torch: $(NEWEST_VENV)/.has-torch  ## run the tests on the newest torch, without TensorFlow
	@$(MAKE) --no-print-directory build VENV=$(NEWEST_VENV)
	$(ONE_THREAD) $(NEWEST_VENV)/bin/python $(PYTEST) -m "not slow and not tf" --ignore=tests/integrations

lint: setup typecheck  ## check style and types
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	@PATH="$(BIN):$$PATH" cython-lint src/fastnet

typecheck: setup
	$(BIN)/mypy

fe-packages: $(FE_VENV)/.has-packages  ## fill the environment of FastEstimator; may run beside any other target

# The files with tests that differ by the version of Keras.
of_keras = $$(grep -lwE 'KERAS_3|KINDS' tests/*/tf/test_*.py tests/op/tensorop/*/test_*.py)

# What is the same in Keras 2 and 3 is shown there by the conformance tests; `make test` shows the rest.
test-fe: $(FE_VENV)/.has-fe  ## set up FastEstimator 1.7.0 and Keras 2, and run parity and conformance tests
	@$(MAKE) --no-print-directory build VENV=$(FE_VENV) PYTHON=$(FE_PYTHON)
	$(ONE_THREAD) $(FE_VENV)/bin/python $(PYTEST) -m "not slow" tests/integrations
	$(ONE_THREAD) $(FE_VENV)/bin/python $(PYTEST) -m "tf and not slow" tests/conformance $(of_keras)

bench-packages: $(VENV)/.has-bench build  ## install what is measured beside fastnet

# One resolution and one compilation of the kernel for the tests and the benchmarks.
packages: $(VENV)/.made  ## fill the environment for `test` and `bench` at once
	$(BIN)/python $(PIP) --constraint constraints/dev.txt --no-build-isolation --editable '.[dev,bench]'
	@touch $(VENV)/.has-dev $(VENV)/.has-bench $(VENV)/.kernel

bench: $(VENV)/.has-bench $(FE_VENV)/.has-fe build  ## measure fastnet and its peers; tables and a plot
	$(ONE_THREAD) $(BIN)/python -m pytest bench --benchmark-only
	$(BIN)/python -m bench.report --fe-python $(abspath $(FE_VENV))/bin/python --save build/bench

bench-quick: bench-packages  ## run every benchmark once, for correctness
	$(ONE_THREAD) $(BIN)/python -m pytest bench --benchmark-disable

# Needs valgrind. Counts are the same whatever else runs here.
instructions: setup  ## count the kernel's instructions; fails if they are 5 % more than committed
	$(BIN)/python -m bench.instructions --check

# The extensions lie in src/, where an editable install finds them.
build: $(VENV)/.kernel  ## compile the kernel again where its sources changed
	@:

annotate: setup  ## write the annotated HTML of each kernel module (yellow: calls into Python)
	@FASTNET_ANNOTATE=1 $(BIN)/python setup.py --quiet build_ext
	@find build/annotate -name '*.html'

# In a build folder of its own, found first; the leak check is off because Python itself never frees all.
sanitize: setup  ## run the kernel's tests under the address and undefined-behaviour sanitizers
	FASTNET_SANITIZE=1 $(BIN)/python setup.py --quiet build
	LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1 \
	PYTHONMALLOC=malloc PYTHONPATH="$$(echo build/sanitize/lib*)" $(BIN)/python -m pytest $(KERNEL_TESTS)

# Without any framework: the package's sources and the committed results are read, not run. What
# Material says of its own future is no warning of the pages.
docs: $(DOCS_VENV)/.has-docs  ## build the site into build/site; fails on a broken link or a missing name
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --strict

dist: setup  ## build the sdist and the wheel into dist/
	$(BIN)/python -m build --no-isolation

clean:  ## remove environments, builds and caches
	rm -rf .venv* build dist src/*.egg-info src/fastnet/*.c src/fastnet/*.html src/fastnet/*.so
	rm -rf .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- how the environments are made ---------------------------------------------------------------
# A stamp file stands for each finished step. Build tools come first, with pins of their own, so that
# nothing is built in a second, isolated environment with other versions.

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) --constraint constraints/dev.txt Cython setuptools
	@touch $@

# An editable install of fastnet with the extra that the stamp names; it compiles the kernel too.
$(VENV)/.has-%: $(VENV)/.made pyproject.toml setup.py constraints/dev.txt
	$(BIN)/python $(PIP) --constraint constraints/dev.txt --no-build-isolation --editable '.[$*]'
	@touch $@ $(VENV)/.kernel

$(FE_VENV)/.has-packages: constraints/fe.txt
	$(FE_PYTHON) -m venv $(FE_VENV)
	$(FE_VENV)/bin/python $(PIP) --constraint constraints/fe.txt \
		Cython fastestimator hypothesis pytest pytest-xdist setuptools tensorflow-cpu torch
	@touch $@

# All other versions are those of constraints/dev.txt.
$(NEWEST_VENV)/.has-torch: constraints/dev.txt pyproject.toml setup.py
	$(PYTHON) -m venv $(NEWEST_VENV)
	grep -v '^torch==' constraints/dev.txt > $(NEWEST_VENV)/constraints.txt
	$(NEWEST_VENV)/bin/python $(PIP) --constraint $(NEWEST_VENV)/constraints.txt \
		Cython hypothesis matplotlib pydot pytest pytest-xdist scikit-learn setuptools
	$(NEWEST_VENV)/bin/python $(PIP) --constraint $(NEWEST_VENV)/constraints.txt --upgrade \
		--no-build-isolation --editable '.[torch]'
	@touch $@ $(NEWEST_VENV)/.kernel

$(FE_VENV)/.has-fe: $(FE_VENV)/.has-packages pyproject.toml setup.py
	$(FE_VENV)/bin/python $(PIP) --no-build-isolation --no-deps --editable .
	@touch $@ $(FE_VENV)/.kernel

$(DOCS_VENV)/.has-docs: constraints/docs.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python $(PIP) --constraint constraints/docs.txt \
		mkdocs-material 'mkdocstrings[python]' numpy plotly ruff
	@touch $@

$(VENV)/.kernel: $(KERNEL)
	$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@
