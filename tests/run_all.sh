#!/usr/bin/env bash
# Every test there is, on real clusters, then the demo: what `make test` and CI run. Installs and builds what it needs.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$(command -v uv || echo .tower/uv/bin/uv)
run() { "$uv" run --locked "$@"; }
begun=$SECONDS
say() { printf '\n== %s (%ds so far)\n' "$1" "$((SECONDS - begun))"; }

say "binaries and images of the lab, cached by version"
run python -m lab build
say "tests without a cluster"
run pytest -q -m "not lab" -n 2 --cov=breakglass --cov-branch --cov-report=
say "tests on real clusters"
run pytest -q -m lab --cov=breakglass --cov-branch --cov-append --cov-report=term:skip-covered --cov-fail-under=85
say "the demo, through the real command line"
DEMO=auto run python -m lab.demo </dev/null
say "done"
