#!/bin/sh
# make chaos [SEED=7|1-8] [DB=mysql|mariadb|postgres|sqlite] [FOR=30s] [ONLY=1,5] [REDUCE=yes]: all faults at once, from a seed
. "$(dirname "$0")/venv.sh"

db=${DB:-mysql}
case $db in
sqlite | postgres) install_wheels ;;
*) mysql_headers && install -e '.[dev]' "$lts" ;;
esac
set -- --db "$db" --for "${FOR:-30s}" ${SEED:+--seed "$SEED"} ${ONLY:+--only "$ONLY"} ${REDUCE:+--reduce}
[ "$db" != sqlite ] || exec "$PY" -m tests.chaos.run "$@"
exec "$PY" -m tests.servers run --only "$db" -- "$PY" -m tests.chaos.run "$@"
