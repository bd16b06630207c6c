#!/bin/sh
# make check: format, lint, types, plain code, and the tests of the verbs on SQLite. It needs no C compiler.
# make quick is the shorter form: sh scripts/check.sh quick. make venv is the first part: sh scripts/check.sh venv
. "$(dirname "$0")/venv.sh"

install_wheels
[ "${1:-}" != venv ] || exit 0
"$PY" -m ruff check .
"$PY" -m ruff format --check .
export JOBQUEUE_TEST_DB=sqlite
if [ "${1:-}" = quick ]; then
    tests=$("$PY" -m tests.selection.quick)
    # shellcheck disable=SC2086
    exec "$PY" -m tests.cost "$PY" -m pytest -q -p no:cacheprovider tests/unit $tests
fi
# The types on one core, the tests on the other. The short run compares the statements with the map.
types=$(mktemp)
trap 'rm -f "$types"' EXIT
"$PY" -m mypy >"$types" 2>&1 &
verbs=$("$PY" -c 'from tests.suite import VERBS; print(*VERBS)')
status=0
# shellcheck disable=SC2086
JOBQUEUE_TEST_RUN=short "$PY" -m pytest -q -p no:cacheprovider tests/unit tests/architecture $verbs || status=$?
wait $! || status=$?
cat "$types"
exit "$status"
