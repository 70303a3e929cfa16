# Everything a contributor runs. Each target first makes the environment it needs; once that is
# fresh, nothing here needs a network.
#
# Another interpreter, beside the usual one:  make test PYTHON=python3.13 VENV=.venv-3.13

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CLASSES := $(VENV)/spark-classes.jsa
WORKERS ?= 4
KILLS ?= 500
DISK_SEEDS ?= 50000
FORWARDER_SEEDS ?= 20000
PARTITION_SEEDS ?= 500
PLAIN_SEEDS ?= 3000
PUBLISHING_SEEDS ?= 20000
SPARK_KILLS ?= 30
FUZZ_INPUTS ?= 1000000

.DEFAULT_GOAL := help
.PHONY: help setup run tour test lint format protocol reference bench bench-peers soak clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## Create .venv with everything the other targets use (PYTHON=... picks the interpreter)
	@:

run: $(READY) ## See it all: publishers that get it wrong, a broker on disk, Spark, a table in order, two audits
	@$(BIN)/python examples/whole_story.py

tour: $(READY) ## See the broker alone, beside a plain worker pool
	@$(BIN)/python examples/quick_tour.py

# Most tests wait more than they compute, so there are more workers than cores.
# They start many processes, and each would compile the library where Python is told to write no bytecode.
test: $(READY) ## Lint, check types, run every test (WORKERS=... at once)
	@$(MAKE) --no-print-directory --jobs=2 lint $(CLASSES)
	@$(BIN)/python -m compileall -q src
	@$(BIN)/pytest --quiet --numprocesses $(WORKERS)

# What Spark says while it starts is of no interest here.
$(CLASSES): $(READY)
	@$(BIN)/python tests/spark/java_classes.py $@ 2>/dev/null

lint: $(READY) ## Check style, format and types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy --strict src

format: $(READY) ## Rewrite the code in the one format
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

protocol: $(READY) ## Make Python of src/inorder/protocol/*.proto
	@$(BIN)/python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src src/inorder/protocol/*.proto

reference: $(READY) ## Write docs/cli.md from the code
	@$(BIN)/python -m inorder.cli.reference docs/cli.md

bench: $(READY) ## Measure
	@$(BIN)/python -m bench

bench-peers: $(READY) ## Install the clients of the peers of `make bench`, and say which servers are missing
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[bench]' -c constraints.txt
	@$(BIN)/python -m bench.peers

# One soaking test may take far longer than the limit that catches a hanging one.
soak: $(READY) ## Search long for an order of events that breaks a promise (KILLS=..., and the seeds above)
	@HYPOTHESIS_PROFILE=soak DISK_SEEDS=$(DISK_SEEDS) FORWARDER_SEEDS=$(FORWARDER_SEEDS) PARTITION_SEEDS=$(PARTITION_SEEDS) \
	    PLAIN_SEEDS=$(PLAIN_SEEDS) PUBLISHING_SEEDS=$(PUBLISHING_SEEDS) \
	    $(BIN)/pytest --quiet --timeout=0 tests/simulation
	@KILLS=$(KILLS) $(BIN)/pytest --quiet --timeout=0 tests/integration
	@SPARK_KILLS=$(SPARK_KILLS) DECLARATIVE_RUNS=3 FETCH_LAKES=1 $(BIN)/pytest --quiet --timeout=0 \
	    tests/spark/test_killed_drivers.py tests/spark/test_declarative.py tests/spark/test_lake_tables.py
	@HYPOTHESIS_PROFILE=soak FUZZ_INPUTS=$(FUZZ_INPUTS) $(BIN)/pytest --quiet --timeout=0 tests/server/test_wire.py

clean: ## Remove the environment and all that was generated
	@rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so an interrupted setup is done again.
$(READY): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing inorder and its tools into $(VENV)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@sh tools/java.sh
	@touch $@

# pip arrives last in a new environment: without it the environment is half made, and made anew.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "inorder needs Python 3.11 or newer, and $(PYTHON) is older or missing." >&2; \
	    echo "Name another one: make setup PYTHON=python3.12" >&2; \
	    exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)
