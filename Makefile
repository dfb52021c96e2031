# What a person types is what CI runs. `make help` lists it.

SHELL := /bin/sh
PYTHON := .dev/venv/bin/python
TOOLS := .dev/tools/bin
INSTANCE ?= test
ENV_FILE := .dev/run/$(INSTANCE)/env
CARGO_DENY_VERSION := 0.20.2
CARGO_MACHETE_VERSION := 0.9.2

FINDINGS := $(CURDIR)/.dev/reliability
# These tests wait for services more than they work.
TEST_THREADS ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores > 3 ? cores : 3)))
CHAOS_SECONDS ?= 600
FUZZ_SECONDS ?= 60

export CARGO_TERM_COLOR ?= auto

.DEFAULT_GOAL := help
.PHONY: help setup build services services-down demo demo-down test lint fmt doc deny unit integration front chaos bench bench-jobs bench-plugins clean

help: ## Lists what there is
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/  make \1|\2/' | column -t -s '|'

setup: ## Installs the development services and tools into .dev/
	@sh dev/setup.sh

build: setup ## Builds the program, optimized
	cargo build --release --locked

services: setup ## Starts the services that tests use; their addresses are in .dev/run/test/env
	@$(PYTHON) dev/services.py up --name $(INSTANCE)

services-down: setup ## Stops them
	@$(PYTHON) dev/services.py down --name $(INSTANCE)

demo: build ## Shows the product at work on real services and real data
	@$(PYTHON) dev/demo.py

demo-down: setup ## Stops everything that the demo started
	@$(PYTHON) dev/demo.py down

test: lint unit front integration ## Runs everything: lint, docs, dependency rules, unit, property and integration tests
	@echo "make test: everything passed"

lint: fmt deny doc ## Checks format, lints, docs and dependency rules
	cargo clippy --workspace --all-targets --locked -- -D warnings
	@sh dev/check_dependencies.sh

fmt: setup ## Checks the format of all code, and spelling
	cargo fmt --all -- --check
	.dev/venv/bin/ruff check dev
	.dev/venv/bin/ruff format --check dev
	.dev/venv/bin/typos
	@$(PYTHON) dev/check_compose.py

# With examples, though there are none, dependencies have the features that tests need, and are checked once for docs and lints.
doc: setup ## Builds the docs of the crates, warnings denied
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --lib --bins --examples --document-private-items --locked

deny: $(TOOLS)/cargo-deny $(TOOLS)/cargo-machete ## Checks licences, sources and bans of dependencies, and unused ones
	$(TOOLS)/cargo-deny --log-level error check bans licenses sources
	$(TOOLS)/cargo-machete

$(TOOLS)/cargo-deny: Makefile
	cargo install cargo-deny@$(CARGO_DENY_VERSION) --locked --debug --no-default-features --root .dev/tools
	@touch $@

$(TOOLS)/cargo-machete: Makefile
	cargo install cargo-machete@$(CARGO_MACHETE_VERSION) --locked --debug --root .dev/tools
	@touch $@

unit: setup ## Runs the tests that need no service
	cargo test --workspace --locked --lib --bins
	cargo test --workspace --locked --doc

front: setup ## Tests the development services themselves
	$(PYTHON) -m unittest discover -s dev/tests -t dev

integration: services ## Runs the tests against the real services
	. ./$(ENV_FILE) && RUST_TEST_THREADS=$(TEST_THREADS) cargo test --workspace --locked --test '*'

chaos: services ## Breaks everything at random for CHAOS_SECONDS, and writes docs/reliability.md
	rm -rf $(FINDINGS)
	BATCH_EXPORT_RELIABILITY=$(FINDINGS) BATCH_EXPORT_FUZZ_SECONDS=$(FUZZ_SECONDS) \
		cargo test --workspace --locked --lib fuzz -- --nocapture
	. ./$(ENV_FILE) && BATCH_EXPORT_RELIABILITY=$(FINDINGS) BATCH_EXPORT_CHAOS_SECONDS=$(CHAOS_SECONDS) \
		cargo test --workspace --locked --test it -- --nocapture --test-threads 2 \
		kill_points:: sink_faults:: source_faults:: memory:: chaos:: job_chaos::
	$(PYTHON) dev/reliability.py $(FINDINGS)

bench: build ## Measures against ClickHouse's own export, side by side
	@$(PYTHON) dev/services.py up --name bench
	. ./.dev/run/bench/env && $(PYTHON) dev/bench.py

bench-plugins: build ## Measures what a plugin on an export costs
	@$(PYTHON) dev/services.py up --name bench
	. ./.dev/run/bench/env && $(PYTHON) dev/bench_plugins.py

bench-jobs: services ## Measures the job queue beside graphile_worker alone, and how soon it fails over
	. ./$(ENV_FILE) && BATCH_EXPORT_BENCH_JOBS=$(CURDIR)/docs/bench-jobs.json \
		cargo bench --locked --package batch-export-jobs --bench providers

clean: services-down demo-down ## Stops everything and removes what was built and installed
	rm -rf target .dev
