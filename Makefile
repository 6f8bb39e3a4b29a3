# Every target sets itself up: uv and .venv here, what is fetched once under .cache/. `make` lists the targets.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

UV_VERSION := 0.13.9
UV := .cache/uv-$(UV_VERSION)/bin/uv
CONNECTORS := $(notdir $(patsubst %/pyproject.toml,%,$(wildcard connectors/*/pyproject.toml)))
PROJECTS := pyproject.toml $(CONNECTORS:%=connectors/%/pyproject.toml)
VENV := .venv/.up-to-date
AIRFLOW := .cache/airflow/.up-to-date

export UV_PYTHON_DOWNLOADS := never
export UV_NO_PROGRESS := 1
# The system's certificates where it has any: a company's proxy may bring its own.
export UV_SYSTEM_CERTS ?= $(if $(wildcard /etc/ssl/certs/ca-certificates.crt),1,0)

# Tests start many processes: let each find what the one before it compiled.
export PYTHONDONTWRITEBYTECODE :=

# Prints the path of a Python that will do. A `python3` on PATH may be an old one, or a shim with nothing behind it.
FIND_PYTHON = for candidate in $${PYTHON:-$$(type -ap python3 python3.14 python3.13 python3.12 python3.11)}; do \
	"$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11) or print(sys.executable))' 2>/dev/null \
		&& exit; \
	done; \
	echo "Headrace needs Python 3.11 or later with venv (on Debian: apt-get install python3-venv). None of the python3 on PATH" \
		"is one; name one with PYTHON=/path/to/python3." >&2; \
	exit 1

.PHONY: help setup demo test lint bench soak servers constraints clean

help: ## list the targets
	@sed -nE 's/^([a-z]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(VENV) ## make .venv, with Headrace and every connector in it, editable

demo: setup ## run the main job on the embedded broker, kill it half-way, and count what was lost and doubled
	.venv/bin/headrace demo $(DEMO)

test: setup servers $(AIRFLOW) ## run every test but the long ones, on real servers (PYTEST="-k name" for fewer)
	.venv/bin/pytest -m "not soak" $(PYTEST)

soak: setup servers $(AIRFLOW) ## run the long tests
	.venv/bin/pytest -m soak --timeout 3600 $(PYTEST)

lint: setup ## check style, types and the direction of imports
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

bench: setup servers $(AIRFLOW) ## measure, beside Airflow's manager and raw clients, and print the goals' table
	.venv/bin/python -m benchmarks $(BENCH)

servers: setup # install what the tests' servers need, where that is possible, and say what there is
	@.venv/bin/python -m headrace.testing.brokers

clean: ## remove everything that these targets made
	rm -rf .venv .cache .*_cache

$(UV):
	@python=$$($(FIND_PYTHON)) && "$$python" -m venv --clear .cache/uv-$(UV_VERSION)
	@.cache/uv-$(UV_VERSION)/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

# Two steps: where every hash is checked, nothing may be editable. The constraints hold the editables' build tools too.
$(VENV): constraints.txt $(PROJECTS) | $(UV)
	@.venv/bin/python -c '' 2>/dev/null || { python=$$($(FIND_PYTHON)) && $(UV) venv --quiet --clear --python "$$python" .venv; }
	@$(UV) pip install --quiet --compile-bytecode --python .venv/bin/python --require-hashes -r constraints.txt
	@$(UV) pip install --quiet --python .venv/bin/python --no-deps --build-constraints constraints.txt \
		-e . $(CONNECTORS:%=-e connectors/%)
	@touch $@

# Airflow's own manager, which the differential test and the benchmarks run beside ours.
$(AIRFLOW): tests/airflow-constraints.txt | $(UV)
	@python=$$($(FIND_PYTHON)) && $(UV) venv --quiet --clear --python "$$python" .cache/airflow
	@$(UV) pip install --quiet --compile-bytecode --python .cache/airflow/bin/python --require-hashes -r $<
	@touch $@

COMPILE = $(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11

constraints: $(UV) ## pin the newest versions that go together (UPGRADE=--upgrade), with their hashes
	$(COMPILE) $(UPGRADE) --group dev --no-emit-package headrace $(CONNECTORS:%=--no-emit-package headrace-%) \
		$(PROJECTS) -o constraints.txt
	printf '%s\n' apache-airflow-core==3.3.2 apache-airflow-task-sdk==1.3.2 \
		| $(COMPILE) $(UPGRADE) --no-annotate - -o tests/airflow-constraints.txt
