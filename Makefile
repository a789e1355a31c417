# The verbs of this project. `make` alone lists them.

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install run lint format test check bench bench-stalls faults proto

help:
	@echo "make install   $(VENV) with the package and its command, $(BIN)/ratelimit"
	@echo "make run       serve rules/ on the in-memory store: gRPC on 8081, HTTP on 8080"
	@echo "make test      get what the tests need and run them; ARGS=\"-k name\" for some"
	@echo "make lint      format, lint, types, imports, generated files, shipped rules"
	@echo "make check     lint and test: what a change must pass"
	@echo "make bench     measure against other servers, in one run (docs/benchmarks.md)"
	@echo "make faults    break Redis in every way under load, and hold answers against counters"
	@echo "make bench-stalls   look for whatever holds the process up, and how much memory it takes"
	@echo "make format    put the code into shape"
	@echo "make proto     generate ratelimit_service/wire/generated from proto/"

install: $(VENV)/.installed

run: install
	@$(BIN)/ratelimit serve $(ARGS)

lint: $(VENV)/.developing
	@$(BIN)/ruff format --check --quiet . || (echo "run: make format"; exit 1)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/python proto/generate.py --check
	@$(BIN)/ratelimit lint rules

format: $(VENV)/.developing
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

test: $(VENV)/.developing
	@command -v redis-server >/dev/null || sh tests/get-redis.sh
	@test -x $(BIN)/h2spec || sh tests/get-h2spec.sh "$(CURDIR)/$(BIN)"
	@test -d $(VENV)/node/node_modules || sh tests/get-node-client.sh "$(CURDIR)/$(VENV)/node"
	@$(BIN)/pytest $(ARGS)

check: lint test

bench: $(VENV)/.developing
	@$(BIN)/python -m benchmarks.run
	@$(BIN)/python -m benchmarks.algorithms
	@$(BIN)/python -m benchmarks.shards
	@$(BIN)/python -m benchmarks.restarts

faults: $(VENV)/.developing
	@command -v redis-server >/dev/null || sh tests/get-redis.sh
	@$(BIN)/python -m benchmarks.faults

bench-stalls: $(VENV)/.developing
	@$(BIN)/python -m benchmarks.stalls

proto: $(VENV)/.developing
	@$(BIN)/python proto/generate.py

# An interpreter counts only if it runs, is new enough and can make environments: a pyenv shim
# may not run, and Debian packs venv apart.
$(VENV)/.installed: pyproject.toml
	@for python in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
		if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
			>/dev/null 2>&1; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
		echo "Python 3.11 or later with venv is missing: sudo apt install make git python3 python3-venv"; \
		exit 1; \
	fi; \
	echo "installing into $(VENV)"; \
	$$found -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.developing: $(VENV)/.installed
	@echo "installing what lint and tests need into $(VENV)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(BIN)/pip install --quiet --disable-pip-version-check --group dev
	@touch $@
