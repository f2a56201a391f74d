# Every target prepares what it needs, and is quick the second time. `make` alone lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
STATIC_CHECKS := check-types check-lint check-migrations check-openapi check-graphql check-settings check-reference
.PHONY: help setup demo up test proof chaos runner actions evidence bench check $(STATIC_CHECKS) lock clean system

# Recipes read this variable from the environment, as "$$STATE_DIR": its value may contain spaces and quotes.
STATE_DIR ?= .state
export STATE_DIR
RUN := .venv/bin/python
MANAGE := $(RUN) manage.py

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.installed .venv/bin/stella system ## create .venv with the locked dependencies and the command stella, and check the system packages

demo: setup ## run one real job and show what it did (your own: REPO=… COMMIT=… CMD="…" EGRESS="host host")
	@$(MANAGE) demo $(if $(REPO),--repo "$$REPO" --commit "$$COMMIT" --cmd "$$CMD" --egress "$$EGRESS")

up: setup ## serve until Ctrl-C (PORT=8000 HOST=127.0.0.1 WORKERS=1 STATE_DIR=.state)
	@$(MANAGE) up

test: setup ## run the whole test suite (ARGS="-k name" for a part of it)
	@$(RUN) -m pytest --numprocesses auto $(ARGS)

proof: setup ## test the leases at length: 200 random histories of 40 steps, the mutants, 500 races of each pair of operations, 10,000 jobs for 64 runners, 200,000 logs with secrets, ten million used tokens, 10,000 deliveries by two dispatchers, a bulk cancel of 5,000 jobs, 1,000 streams, a tour of more pages, six requests of each kind for each operation, 60 bodies of each serializer
	@PROOF_EXAMPLES=200 PROOF_STEPS=40 PROOF_ROUNDS=500 PROOF_JOBS=10000 PROOF_RUNNERS=64 PROOF_SCRUBBING=40000 PROOF_TOKENS=10000000 PROOF_DELIVERIES=10000 PROOF_BULK_JOBS=5000 PROOF_STREAMS=1000 PROOF_TOUR=1 PROOF_REQUESTS=6 PROOF_BODIES=60 $(RUN) -m pytest -o timeout=3600 tests/lease_model \
		tests/orchestrator/services/test_races.py tests/orchestrator/services/test_races_of_pairs.py \
		tests/orchestrator/protocols/bencher/channel/test_races.py tests/orchestrator/protocols/bencher/test_mutants.py \
		tests/orchestrator/protocols/bencher/runs/test_many_runners.py tests/runtime_jobs/test_scrubbing.py \
		tests/orchestrator/job_tokens/test_partitions.py tests/orchestrator/processes/test_dispatcher.py \
		tests/orchestrator/bulk_actions/test_real_dispatchers.py tests/integration/test_many_streams.py tests/integration/test_tour.py \
		tests/orchestrator/http/test_openapi_holds.py tests/orchestrator/http/api/test_compiled_serializers.py $(ARGS)

chaos: setup ## kill one of two servers, scheduler, housekeeping, workers, runners, storage and PostgreSQL at random under load (SECONDS=300 SEED=… WORKERS=4 RUNNERS=8)
	@$(RUN) -m tests.chaos --seconds $(or $(SECONDS),300) --workers $(or $(WORKERS),4) --runners $(or $(RUNNERS),8) \
		$(if $(SEED),--seed $(SEED))

runner: setup ## play the life of a Bencher runner with its real program, nine minutes (BENCHER_RUNNER=path of `runner`)
	@$(RUN) -m tests.bencher_runner

actions: setup ## play the life of a runner of workflow jobs with shithub's real program, four minutes (SHITHUBD_RUNNER=path of `shithubd-runner`)
	@test -x "$$SHITHUBD_RUNNER" || { echo "SHITHUBD_RUNNER names no program: SHITHUBD_RUNNER=/path/to/shithubd-runner"; exit 2; }
	@$(RUN) -m pytest tests/orchestrator/protocols/shithub/test_real_runner.py $(ARGS)

evidence: setup ## run a pack, replay it sealed, export an audit bundle, and verify it with stella and with securesystemslib
	@$(RUN) -m tests.evidence_run

bench: setup ## run all benchmarks, about 50 minutes (QUICK=1: five minutes; ONLY="claims limits": a part; BASELINE=: compare)
	@STATE_DIR="$$STATE_DIR/bench" QUICK=$(QUICK) ONLY="$(ONLY)" BASELINE="$(BASELINE)" $(RUN) -m benchmarks

TESTS = fast
check: setup ## check lint, format, types, migrations, OpenAPI, GraphQL, the settings and their page, and run the fast tests (TESTS=: no tests)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target $(STATIC_CHECKS)
	@if [ "$(TESTS)" ]; then $(RUN) -m pytest --numprocesses auto --quiet -m "not slow"; fi

# mypy takes longest, and one processor.
check-types: setup
	@.venv/bin/mypy --no-error-summary

check-lint: setup
	@.venv/bin/ruff check --quiet .
	@.venv/bin/ruff format --check --quiet . || { echo "not formatted: run .venv/bin/ruff format"; exit 1; }

check-migrations: setup
	@$(MANAGE) makemigrations --check --dry-run

REDOCLY := REDOCLY_TELEMETRY=off npx --yes @redocly/cli@2.77.0
check-openapi: setup
	@$(MANAGE) spectacular --validate --fail-on-warn | diff --brief - docs/openapi.yaml >/dev/null \
		|| { echo "docs/openapi.yaml is out of date: run $(MANAGE) spectacular --file docs/openapi.yaml"; exit 1; }
	@if $(REDOCLY) --version >/dev/null 2>&1; then \
		report=$$($(REDOCLY) lint docs/openapi.yaml 2>&1) || { echo "$$report"; exit 1; }; \
		else echo "docs/openapi.yaml is not linted: Node's npx cannot start redocly here"; fi

check-graphql: setup
	@$(MANAGE) graphqlschema | diff --brief - docs/schema.graphql >/dev/null \
		|| { echo "docs/schema.graphql is out of date: run $(MANAGE) graphqlschema --file docs/schema.graphql"; exit 1; }

check-settings: setup
	@PUBLIC_URL=https://orchestrator.example $(MANAGE) check --deploy --fail-level WARNING

check-reference: setup
	@$(RUN) -m config.settings_reference | diff --brief - docs/settings.md >/dev/null \
		|| { echo "docs/settings.md is out of date: run $(RUN) -m config.settings_reference > docs/settings.md"; exit 1; }

lock: .venv/.installed ## resolve the dependencies of pyproject.toml again, into requirements.txt
	@$(RUN) -m pip install --quiet uv
	@.venv/bin/uv pip compile --quiet --generate-hashes --no-header --no-annotate --universal --python-version 3.11 \
		pyproject.toml --group dev --output-file requirements.txt

clean: ## remove .venv, the data in STATE_DIR and the caches
	@if [ -e "$$STATE_DIR" ]; then $(PYTHON) -m config.paths "$$STATE_DIR"; fi
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- set-up -----------------------------------------------------------------------------------------------------------

# The first Python of these names that is new enough; empty if there is none.
PYTHON = $(shell for name in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$name; break; }; done)

# COMMAND=PACKAGE pairs. All are checked before anything is downloaded, so that one message names all that is missing.
NEEDS := git=git bwrap=bubblewrap strace=strace setpriv=util-linux prlimit=util-linux taskset=util-linux mkfs.ext4=e2fsprogs
test: NEEDS += chromium=chromium skopeo=skopeo
# Debian's python3 cannot create a virtual environment without this package.
VENV_NEEDS = $(if $(wildcard .venv/bin/python),,$(shell $(PYTHON) -c 'import ensurepip' 2>/dev/null || echo ensurepip=python3-venv))

system:
	@[ -x .venv/bin/python ] || [ -n "$(PYTHON)" ] || ! command -v python3 >/dev/null \
		|| { echo "Python 3.11 or newer is needed; this machine has $$(python3 --version)"; exit 1; }
	@deploy/need $(NEEDS) $(VENV_NEEDS)

.venv/bin/python: | system
	@python="$(PYTHON)"; \
	[ -n "$$python" ] || { echo "Python 3.11 or newer is missing on this machine"; exit 1; }; \
	$$python -m venv .venv >/dev/null 2>&1 || { rm -rf .venv; echo "could not make .venv with $$python"; exit 1; }

.venv/.installed: requirements.txt | .venv/bin/python
	@deploy/install-dependencies
	@touch $@

.venv/bin/stella: deploy/stella | .venv/bin/python
	@install -m 755 $< $@
