# The commands of Sluice. `make` lists them. Settings are given as variables: make up WORKERS=2 PORT=9000

PYTHON ?= python3
VENV := .venv/bin
ARGS ?=

# Tests with real engines and whole services: minutes, so they run when the quick ones have passed.
SLOW := tests/engines tests/e2e tests/chaos

# Tests in which the broker's release matters. Mutants are about the tests themselves.
QUEUE := tests/queue tests/protocol --ignore=tests/protocol/test_mutants.py

.DEFAULT_GOAL := help
.PHONY: help up down logs test test-redis7 test-protocol chaos check bench clean lock install install-dev

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

up: install ## set up and start everything here; Ctrl-C stops it
	@exec $(VENV)/python -m cli up $(ARGS)

down: ## drain and stop what `make up` started
	@if [ -x $(VENV)/python ]; then exec $(VENV)/python -m cli down $(ARGS); fi

logs: ## follow the logs of all parts
	@if [ -x $(VENV)/python ]; then exec $(VENV)/python -m cli logs $(ARGS); else echo 'nothing is set up yet: run make up'; exit 1; fi

test: install-dev ## run all tests; those with a real engine last
	@$(VENV)/python -m pytest tests $(SLOW:%=--ignore=%) -n auto --maxprocesses=4 $(ARGS)
	@$(VENV)/python -m pytest $(SLOW) $(ARGS)

test-redis7: install-dev ## run the queue's tests against the oldest server that will do, Debian's redis-server 7.0
	@server=$$(tests/redis7.sh) && TEST_SERVER=$$server $(VENV)/python -m pytest $(QUEUE) -n auto --maxprocesses=4 $(ARGS)

test-protocol: install-dev ## run random schedules of the queue's scripts beside their model: SEEDS=1000
	@$(VENV)/python -m tests.protocol --seeds $(or $(SEEDS),60) $(ARGS)

chaos: install-dev ## kill and cut parts of a service under load, and judge by its clients: ARGS='--seconds 120 --seed 7'
	@$(VENV)/python -m tests.chaos $(ARGS)

check: install-dev ## format, lint and types, as CI runs them
	$(VENV)/ruff format --check .
	$(VENV)/ruff check .
	$(VENV)/mypy .

bench: install-dev ## measure engine and queue against their targets, some minutes
	@code=0; \
	$(VENV)/python -m bench.queue --latency || code=$$?; \
	$(VENV)/python -m bench.engine --quick || code=$$?; \
	exit $$code

clean: ## remove caches; ALL=1 removes data, fetched models and .venv too
	@if [ "$(ALL)" = 1 ] && [ -x $(VENV)/python ]; then $(VENV)/python -m cli clean --all; fi
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis build
	@find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
	@if [ "$(ALL)" = 1 ]; then rm -rf .venv; fi

lock: ## compile requirements/*.in into lock files (needs uv); UPGRADE=1 takes newer releases
	@requirements/lock.sh

install:
	@$(PYTHON) -m cli.install

install-dev:
	@$(PYTHON) -m cli.install --dev
