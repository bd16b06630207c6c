#!/bin/sh
# make prove [ISSUE=name] [DB=mysql|mariadb|postgres|sqlite]: prove what tests/proofs/table.py promises on the real servers,
# all of it or one page, on all databases or one, and write docs/proof/ and docs/benchmarks.md. Goes on where a run was
# broken off.
sh "$(dirname "$0")/needs_git.sh" prove "writes the commit that it proves into its pages" || exit 1
. "$(dirname "$0")/venv.sh"

mysql_headers
install -e '.[dev]' "$lts"
# The packages whose tables are imported, whose pages are measured beside ours, and whose queues are. What cannot be
# installed is named in the last lines of the run.
sh scripts/django6.sh || true
sh scripts/other_packages.sh || true
sh scripts/other_packages.sh bench || true
exec "$PY" -m tests.proofs.run "${1:-}" "${2:-}"
