# The verbs of this project. `make` alone lists them.

VENV := .venv
BIN := $(VENV)/bin
COMPILED := .venv-compiled
TOOLS := .tools
SITE := .site
SOURCES := setup.py $(shell find ratelimit_service -name '*.py' -o -name '*.lua')
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-annotate --custom-compile-command "make lock"
LOCKED := $(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement
SPHINX := $(BIN)/sphinx-build --quiet --fail-on-warning --fresh-env
ARGS ?=

# Images of Python often set it. Then each process that a test starts would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

# $(call STEP,target,2 of 3,what) before a command: says where a long target is.
STEP = echo "$(1), step $(2): $(3)" &&

.DEFAULT_GOAL := help
.PHONY: help install install-compiled run lint format unit test test-compiled check bench bench-stalls \
	faults abuse costs clients proto docs site release-notes lock tools

help:
	@echo "make install   $(VENV) with the package and its command, $(BIN)/ratelimit"
	@echo "make install-compiled   the same as machine code in $(COMPILED), and a wheel of it in dist"
	@echo "make run       serve rules/ on the in-memory store: gRPC on 8081, HTTP on 8080; ARGS=\"--http HOST:PORT\" for flags"
	@echo "make unit      run the tests that open no port and start no process, in about a minute; ARGS=\"-k name\" for some"
	@echo "make test      run the tests, which get what they need; ARGS=\"-k name\" for some"
	@echo "make tools     get at once what tests get one by one, and benchmarks need: Redis, h2spec, a management server, a gateway, a reader of deploy/, promtool, and clients in Go and Node.js"
	@echo "make lint      format, lint, types, imports, generated files, shipped rules, links of documents, leftovers"
	@echo "make test-compiled   the same tests against the compiled package"
	@echo "make check     lint and both tests: what a change must pass"
	@echo "make bench     measure against other servers, in one run (docs/benchmarks.md)"
	@echo "make faults    break Redis in every way under load, and hold answers against counters"
	@echo "make abuse     attack it in all known ways beside an honest client, and hold it to bounds"
	@echo "make costs     hold what frames are charged against what they cost"
	@echo "make clients   let gRPC clients in Go, Rust, Java, Node.js and Python call; ARGS=\"tonic\" for some"
	@echo "make bench-stalls   look for whatever holds the process up, and how much memory it takes"
	@echo "make format    put the code into shape"
	@echo "make lock      versions and hashes of all that runs and tests: requirements*.txt"
	@echo "make docs      write the tables in docs/ that follow from the code"
	@echo "make site      make a site of docs/ in $(SITE), with a search that needs no network"
	@echo "make release-notes   print what changed, for the page of a release; ARGS=0.1.0 for a version"
	@echo "make proto     generate ratelimit_service/wire/generated from proto/"

install: $(VENV)/.installed

install-compiled: $(COMPILED)/.compiled

run: install
	@$(BIN)/ratelimit serve $(ARGS)

lint: $(VENV)/.developing
	@$(BIN)/ruff format --check --quiet . || (echo "run: make format"; exit 1)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/python proto/generate.py --check
	@$(BIN)/python docs/generate.py --check
	@$(BIN)/ratelimit lint rules
	@$(SPHINX) --builder dummy docs $(SITE)/check
	@$(BIN)/pytest --quiet --no-header tests/algorithms/test_declared.py tests/docs/test_leftovers.py \
		tests/test_compiled.py

format: $(VENV)/.developing
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

unit: $(VENV)/.developing
	@$(BIN)/pytest --unit --numprocesses 2 --dist worksteal --quiet -r fE $(ARGS)

test: $(VENV)/.developing
	@$(REDIS)
	@echo "running the tests"
	@$(BIN)/pytest $(ARGS)

# Tests have `make` get each of these when they need it.
tools: $(addprefix $(TOOLS)/,h2spec management kuadrant validate recipes/go promtool node/node_modules/@grpc/grpc-js)
	@$(REDIS)

REDIS = command -v redis-server >/dev/null || sh tests/get-redis.sh

$(TOOLS)/h2spec:
	@sh tests/get-go-program.sh "$(CURDIR)/$@" tests/h2spec github.com/summerwind/h2spec/cmd/h2spec

$(TOOLS)/management:
	@sh tests/get-go-program.sh "$(CURDIR)/$@" tests/management .

$(TOOLS)/kuadrant: tests/kuadrant/main.go
	@sh tests/get-go-program.sh "$(CURDIR)/$@" tests/kuadrant .

$(TOOLS)/validate: tests/deploy/validate/main.go
	@sh tests/get-go-program.sh "$(CURDIR)/$@" tests/deploy/validate .

$(TOOLS)/recipes/go:
	@sh tests/get-go-program.sh "$(CURDIR)/$@" examples/clients/go .

$(TOOLS)/promtool:
	@sh tests/get-promtool.sh "$(CURDIR)/$@"

$(TOOLS)/node/%:
	@sh tests/get-node-client.sh "$(CURDIR)/$(TOOLS)/node"

test-compiled:
	@command -v cc >/dev/null || sh tests/get-compiler.sh
	@$(MAKE) --no-print-directory install-compiled
	@$(MAKE) --no-print-directory test VENV=$(COMPILED) ARGS="--import-mode=append $(ARGS)"

check: lint test test-compiled

bench: $(VENV)/.developing $(COMPILED)/.compiled tools
	@$(BIN)/python -m benchmarks.run
	@$(BIN)/python -m benchmarks.workers
	@$(BIN)/python -m benchmarks.algorithms
	@$(BIN)/python -m benchmarks.matching
	@$(BIN)/python -m benchmarks.accuracy
	@$(BIN)/python -m benchmarks.reservations
	@$(BIN)/python -m benchmarks.replay
	@$(BIN)/python -m benchmarks.shards
	@$(BIN)/python -m benchmarks.restarts
	@$(BIN)/python -m benchmarks.overload
	@$(BIN)/python -m benchmarks.beside

faults: $(VENV)/.developing tools
	@$(BIN)/python -m benchmarks.faults

abuse: $(VENV)/.developing tools
	@$(BIN)/python -m benchmarks.abuse $(ARGS)

costs: $(VENV)/.developing
	@$(BIN)/python -m benchmarks.costs

clients: $(VENV)/.developing tools
	@sh benchmarks/clients/get-tools.sh
	@sh tests/build-recipes.sh "$(CURDIR)/$(TOOLS)/recipes"
	@$(BIN)/python -m benchmarks.clients $(ARGS)

bench-stalls: $(VENV)/.developing tools
	@$(BIN)/python -m benchmarks.stalls

# Versions and hashes of all that is installed here and into the image: what runs, what builds it,
# what compiles it, and what tests it. Equal packages have equal versions in all of them.
lock: $(VENV)/.developing
	@$(BIN)/pip install --quiet --disable-pip-version-check uv==0.13.9
	@$(LOCK) --upgrade --extra otel --extra regex --output-file requirements.txt pyproject.toml
	@$(LOCK) --upgrade --constraint requirements.txt --extra otel --extra regex --group dev \
		--output-file requirements-dev.txt pyproject.toml
	@$(LOCK) --upgrade --constraint requirements-dev.txt --group compile \
		--output-file requirements-compile.txt
	@grep -o '"setuptools[^"]*"' pyproject.toml | head -n 1 | tr -d '"' | $(LOCK) --upgrade \
		--constraint requirements-dev.txt --output-file requirements-build.txt -

proto: $(VENV)/.developing
	@$(BIN)/python proto/generate.py

docs: $(VENV)/.developing
	@$(BIN)/python docs/generate.py

# What is not linked right, or stands nowhere in the navigation, fails; `make lint` looks for the same.
site: $(VENV)/.developing
	@echo "reading the documents, and writing a page of each"
	@$(SPHINX) --builder html docs $(SITE)/html
	@echo "open $(SITE)/html/index.html in a browser"

release-notes: $(VENV)/.developing
	@$(BIN)/python docs/release_notes.py $(ARGS)

# An interpreter counts only if it runs, is new enough and can make environments: a pyenv shim
# may not run, and Debian packs venv apart.
# What is installed has the versions and hashes of the lock files.
$(VENV)/.installed: pyproject.toml requirements.txt requirements-build.txt
	@for python in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
		if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
			>/dev/null 2>&1; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
		echo "Python 3.11 or later with venv is missing: sudo apt install make git python3 python3-venv"; \
		exit 1; \
	fi; \
	$(call STEP,install,1 of 3,an environment in $(VENV)) $$found -m venv $(VENV)
	@$(call STEP,install,2 of 3,what the service needs) \
		$(LOCKED) requirements.txt --requirement requirements-build.txt
	@$(call STEP,install,3 of 3,the service itself) \
		$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(COMPILED)/.compiled: $(SOURCES) pyproject.toml requirements-compile.txt
	@command -v cc >/dev/null || \
		(echo "a C compiler is missing: sudo apt install gcc python3-dev"; exit 1)
	@$(MAKE) --no-print-directory $(COMPILED)/.installed VENV=$(COMPILED)
	@rm -rf build dist
	@$(call STEP,install-compiled,1 of 3,the compiler) \
		$(COMPILED)/bin/pip install --quiet --disable-pip-version-check --require-hashes \
		--requirement requirements-compile.txt
	@$(COMPILED)/bin/python -c 'import os, sysconfig; \
		os.stat(sysconfig.get_paths()["include"] + "/Python.h")' 2>/dev/null || \
		(echo "the headers of Python are missing: sudo apt install python3-dev"; exit 1)
	@# pip shows that it is still at it.
	@$(call STEP,install-compiled,2 of 3,machine code; this takes two minutes of two cores) \
		RATELIMIT_COMPILED=1 $(COMPILED)/bin/pip wheel --disable-pip-version-check \
		--no-deps --no-build-isolation --wheel-dir dist .
	@$(call STEP,install-compiled,3 of 3,the service itself) \
		$(COMPILED)/bin/pip install --quiet --disable-pip-version-check \
		--force-reinstall --no-deps dist/*.whl
	@touch $@
	@$(COMPILED)/bin/ratelimit --version

$(VENV)/.developing: $(VENV)/.installed requirements-dev.txt client/pyproject.toml
	@$(call STEP,tests,1 of 2,what lint and tests need) $(LOCKED) requirements-dev.txt
	@# xds-protos brings old copies of OpenTelemetry's files along, and puts them in their place.
	@awk '/^opentelemetry-proto==/ {found = 1} found {print} found && !/\\$$/ {exit}' \
		requirements.txt >$(VENV)/opentelemetry-proto.txt
	@$(LOCKED) $(VENV)/opentelemetry-proto.txt --force-reinstall --no-deps
	@$(call STEP,tests,2 of 2,the client) $(BIN)/pip install --quiet \
		--disable-pip-version-check --no-deps --no-build-isolation --editable ./client
	@touch $@
