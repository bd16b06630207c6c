#!/bin/sh
# make bench-check [BASE=COMMIT] [DB=mysql|mariadb|postgres|sqlite]: is the working tree slower than the commit?
sh "$(dirname "$0")/needs_git.sh" bench-check "compares the working tree with a commit" || exit 1
. "$(dirname "$0")/venv.sh"

db=${DB:-mysql}
case $db in
sqlite) install_wheels && exec "$PY" -m benchmarks.check --db sqlite --base "${BASE:-}" ;;
postgres) install_wheels ;;
*) mysql_headers && install -e '.[dev]' "$lts" ;;
esac
exec "$PY" -m tests.servers run --only "$db" -- "$PY" -m benchmarks.check --db "$db" --base "${BASE:-}"
