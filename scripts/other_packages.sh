#!/bin/sh
# For test.sh, prove.sh and bench.sh: makes the environments of other packages. .venv-import: those whose tables `schedules`
# imports; .venv-rivals: those whose admin pages are measured beside ours. The latter need Python 3.12 or later, as Django 6
# does, so they are made if .venv-6 is there: see django6.sh. With `bench`: .venv-bench, the queues that are measured.
. "$(dirname "$0")/venv.sh"

# Without a stamp: pip sees in two seconds that nothing is missing.
packages() {
    PY=$PWD/$1/bin/python
    make_venv "$2"
    "$PY" -m pip install --quiet --disable-pip-version-check --no-compile -r "$3"
}

mysql_headers
if [ "${1:-}" = bench ]; then
    packages .venv-bench "$PWD/.venv/bin/python" benchmarks/peers/requirements.txt
    exit 0
fi
packages .venv-import "$PWD/.venv/bin/python" tests/proofs/schedules/foreign_requirements.txt
[ ! -x .venv-6/bin/python ] || packages .venv-rivals "$PWD/.venv-6/bin/python" tests/proofs/dashboard/rivals_requirements.txt
