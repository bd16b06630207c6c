#!/bin/sh
# make bench: measure on the real servers; writes docs/benchmarks.md. Options: see python -m benchmarks --help, and
# --peers alone first installs the other queues into .venv-bench, for their columns.
. "$(dirname "$0")/venv.sh"

mysql_headers
install -e '.[dev]'
# --peers NAMES chooses among what is installed; --peers at the end or before another option installs.
previous=""
for word in "$@" ""; do
    case $previous,$word in
    --peers, | --peers,-*) wanted=yes ;;
    esac
    previous=$word
done
if [ -n "${wanted:-}" ]; then
    sh scripts/other_packages.sh bench
    # What is left is for python -m benchmarks, which takes every peer it finds.
    count=$#
    while [ "$count" -gt 0 ]; do
        word=$1
        shift
        count=$((count - 1))
        case $word,${1:-} in
        --peers, | --peers,-*) ;;
        *) set -- "$@" "$word" ;;
        esac
    done
fi
exec "$PY" -m tests.servers run -- "$PY" -m benchmarks "$@"
