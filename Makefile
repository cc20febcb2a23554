# Two commands do all the set-up on a fresh Debian-like machine (root, Go, Python ≥ 3.11): `make demo`, `make test`.
# The rest is for daily work.
SHELL := /bin/bash
.DEFAULT_GOAL := help
export UV_PYTHON_DOWNLOADS = never
UV := $(shell command -v uv || echo .tower/uv/bin/uv)
RUN := $(UV) run --locked

.PHONY: help demo test check lint types imports pure lab-down clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

$(filter .tower/%,$(UV)):
	python3 -m venv .tower/uv && .tower/uv/bin/pip install --quiet 'uv>=0.8'

setup: $(filter .tower/%,$(UV))
	@$(UV) sync --locked --quiet

demo: setup ## from nothing to a recorded shell on a real cluster (DEMO=auto plays it through)
	@$(RUN) python -m lab.demo

check: setup lint types imports pure ## lint, types, import direction, pure tests: no root, under a minute

lint:
	@$(RUN) ruff check . && $(RUN) ruff format --check .

types:
	@$(RUN) mypy src lab bench image tests/simulators

imports:
	@$(RUN) lint-imports

pure:
	@$(RUN) pytest -q -m "not lab and not slow and not root" -n 2

test: setup lint types imports ## everything: all tests on real clusters, with the coverage gate, then the demo
	@bash tests/run_all.sh
