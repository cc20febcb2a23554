#!/usr/bin/env bash
# Every test there is, on real clusters, then the demo: what `make test` and CI run. Installs and builds what it needs.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$(command -v uv || echo .tower/uv/bin/uv)
run() { "$uv" run --locked "$@"; }
begun=$SECONDS
say() { printf '\n== %s (%ds so far)\n' "$1" "$((SECONDS - begun))"; }
# Real processes on a busy machine: what failed is run once more, alone, and the log shows both. Twice is a failure.
tests() {
  run pytest -q --cov=breakglass --cov-branch --cov-append --cov-report= "$@" && return
  say "once more, only what failed"
  run pytest -q --cov=breakglass --cov-branch --cov-append --cov-report= --last-failed --last-failed-no-failures none "$@" -n 0
}

say "binaries and images of the lab, cached by version"
run python -m lab build
rm -f .coverage
say "tests without a cluster"
tests -m "not lab" -n 2
say "tests on real clusters"
tests -m lab -n 0
say "coverage"
run coverage report --skip-covered --fail-under=80
say "the demo, through the real command line"
DEMO=auto run python -m lab.demo </dev/null
say "done"
