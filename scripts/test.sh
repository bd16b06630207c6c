#!/bin/sh
# make test: set up, start the real servers, run the short form of the suite, stop them again. Options:
#   --db NAME   (make test DB=name) everything on one database: mysql, mariadb, postgres or sqlite
#   --all       (make test-all) everything on every database and both Djangos
#   --map       (make test-map) renew the map of statements, by all tests or by the paths that follow
# Paths and options of pytest may follow: sh scripts/test.sh tests/races
. "$(dirname "$0")/venv.sh"

missing="" db="" all=""
case ${1:-} in
--db) db=$2 ;;
--all) all=yes ;;
esac
case $db in
"") servers=mysql,mariadb,postgres,redis ;;
sqlite) servers=redis ;;
mysql | mariadb | postgres) servers=$db,redis ;;
*)
    echo "DB is mysql, mariadb, postgres or sqlite, not $db" >&2
    exit 2
    ;;
esac
if [ "$db" = postgres ]; then
    install_wheels
elif mysql_headers; then
    # Both environments at the same time, but for MariaDB, which is tested on Django 5.2 only. What django6.sh prints is
    # the reason why there is no Django 6.
    reason=$(mktemp)
    [ "$db" = mariadb ] || sh scripts/django6.sh >"$reason" &
    built=yes
    install -e '.[dev]' "$lts" || built=no
    if wait $!; then
        JOBQUEUE_TEST_PYTHON6=$PWD/.venv-6/bin/python
        export JOBQUEUE_TEST_PYTHON6
        # Proofs run these packages beside ours; what is missing then is skipped, and the last lines tell it.
        [ -z "$all" ] || sh scripts/other_packages.sh || true
    else
        missing=$(cat "$reason")
    fi
    rm -f "$reason"
else
    built=no
fi
if [ "${built:-yes}" = no ]; then
    if [ "${CI:-}" = true ]; then
        echo "CI=true and the test requirements could not be installed: see above." >&2
        exit 1
    fi
    unset JOBQUEUE_TEST_PYTHON6
    missing="mysqlclient could not be built, so MySQL and MariaDB are not tested, nor Django 6.x"
    [ -n "$db" ] || servers=postgres,redis
    install_wheels
fi
export JOBQUEUE_TEST_SETUP_MISSING="$missing"
exec "$PY" -m tests.cost "$PY" -m tests.servers run --only "$servers" -- "$PY" -m tests.suite "$@"
