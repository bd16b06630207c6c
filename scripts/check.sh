#!/bin/sh
# make check: format, lint, types, plain code, and the verbs on SQLite, in less than a minute. It needs no C compiler.
# make venv is the first part of it: sh scripts/check.sh venv
. "$(dirname "$0")/venv.sh"

install_wheels
[ "${1:-}" != venv ] || exit 0
"$PY" -m ruff check .
"$PY" -m ruff format --check .
# The types on one core, the tests on the other.
types=$(mktemp)
trap 'rm -f "$types"' EXIT
"$PY" -m mypy >"$types" 2>&1 &
verbs=$("$PY" -c 'from tests.suite import VERBS; print(*VERBS)')
status=0
JOBQUEUE_TEST_DB=sqlite "$PY" -m pytest -q -p no:cacheprovider tests/unit $verbs || status=$?
wait $! || status=$?
cat "$types"
exit "$status"
