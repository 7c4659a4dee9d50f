# The one door to the project: `make` lists the targets.
# It needs python3 (3.11 or newer) and make; all else goes into $(VENV).

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

# Certificates and interpreters are those of the machine; nothing asks for news.
export UV_SYSTEM_CERTS := 1
export UV_PYTHON_DOWNLOADS := never
export NODE_USE_SYSTEM_CA := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

python := $(VENV)/bin/python
uv := $(python) -m uv
pip_install := $(uv) pip install --quiet --python $(python)
install_package := $(pip_install) --no-deps --build-constraint requirements/build.txt --editable .
in_memory := $(python) -m pytest -m "not loopback"
halves := unit-lifecycle unit-rest
# pyright finds an editable package only through the python that is first on PATH.
pyright := PATH="$(abspath $(VENV))/bin:$$PATH" $(python) -m pyright
compile := $(uv) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate

# What `coverage report` must find complete: the parts that only map values to values.
pure := src/freshtoken/_protocol/*,src/freshtoken/_lifecycle/policy.py

.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo check test lint format types layers unit $(halves) coverage verifytypes lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/demo.stamp ## watch a session stay fresh through faults (ARGS=--no-refresh to see it fail)
	$(python) examples/demo.py $(ARGS)

check: lint types layers unit ## the gate of a commit: all that runs in memory

test: lint types layers coverage verifytypes ## the whole gate: also real servers, coverage, public types

lint: $(VENV)/dev.stamp ## style and format
	$(python) -m ruff check .
	$(python) -m ruff format --check .

format: $(VENV)/dev.stamp ## mend what can be mended by itself
	$(python) -m ruff check --fix .
	$(python) -m ruff format .

types: $(VENV)/dev.stamp ## mypy, strict
	$(python) -m mypy

layers: $(VENV)/dev.stamp ## imports point down
	$(VENV)/bin/lint-imports --no-logo

ifeq ($(strip $(ARGS)),)
unit: $(VENV)/dev.stamp ## tests in memory, two halves at once (ARGS="-k name" picks some)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target $(halves)
else
unit: $(VENV)/dev.stamp
	$(in_memory) $(ARGS)
endif

# Each half takes about as long as the other.
unit-lifecycle: $(VENV)/dev.stamp
	$(in_memory) $(wildcard tests/lifecycle/test_[a-s]*.py)

unit-rest: $(VENV)/dev.stamp
	$(in_memory) --ignore-glob='tests/lifecycle/test_[a-s]*.py'

coverage: $(VENV)/dev.stamp ## all tests, and what they cover
	$(python) -m coverage run -m pytest $(ARGS)
	$(python) -m coverage report
	$(python) -m coverage report --include='$(pure)' --fail-under=100

verifytypes: $(VENV)/dev.stamp ## the public types are complete, for pyright too
	$(pyright)
	$(pyright) --verifytypes freshtoken --ignoreexternal

lock: $(VENV)/uv.stamp ## recompile requirements/*.txt (ARGS=--upgrade for newer versions)
	echo uv | $(compile) $(ARGS) - --output-file requirements/uv.txt
	echo 'hatchling>=1.27' | $(compile) $(ARGS) - --output-file requirements/build.txt
	$(compile) $(ARGS) pyproject.toml --group dev --output-file requirements/dev.txt
	$(compile) pyproject.toml --extra demo --constraints requirements/dev.txt \
		--output-file requirements/demo.txt

clean: ## remove what can be made again
	rm -rf $(VENV) build dist .coverage .coverage.* htmlcov .hypothesis
	rm -rf .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# ---------------------------------------------------------------- the environment

# Whatever stops an environment from being made is said in one line.
$(VENV)/uv.stamp: requirements/uv.txt
	@command -v $(PYTHON) >/dev/null 2>&1 || \
		{ echo "$(PYTHON) is not there: install Python 3.11 or newer, or name one (make PYTHON=python3.12)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is too old: freshtoken needs Python 3.11 or newer, name one (make PYTHON=python3.12)" >&2; exit 1; }
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || \
		{ rm -rf $(VENV); echo "$(PYTHON) cannot make virtual environments: install python3-venv (Debian/Ubuntu: apt-get install python3-venv), then run make again" >&2; exit 1; }
	$(python) -m pip install --quiet --require-hashes --requirement requirements/uv.txt
	@touch $@

# `uv pip sync` leaves pip and uv in place, and takes out whatever else is not listed.
$(VENV)/dev.stamp: $(VENV)/uv.stamp requirements/dev.txt requirements/build.txt pyproject.toml
	$(uv) pip sync --quiet --python $(python) --require-hashes requirements/dev.txt
	$(install_package)
	@touch $(VENV)/demo.stamp $@

# What is developed with includes what the demo needs; this alone is much smaller.
$(VENV)/demo.stamp: $(VENV)/uv.stamp requirements/demo.txt requirements/build.txt pyproject.toml
	$(pip_install) --require-hashes --requirement requirements/demo.txt
	$(install_package)
	@touch $@
