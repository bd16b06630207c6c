#!/bin/sh
# make test: set up, start the real servers, run the suite on every database, stop them again.
. "$(dirname "$0")/venv.sh"

missing=""
if mysql_headers && install -e '.[dev]'; then
    :
else
    if [ "${CI:-}" = true ]; then
        echo "CI=true and the test requirements could not be installed: see above." >&2
        exit 1
    fi
    missing="mysqlclient could not be built, so MySQL and MariaDB are not tested"
    install -e '.[demo,postgres]' pytest pytest-django pytest-randomly pytest-timeout redis PyYAML jsonschema
fi
if [ -n "$missing" ]; then
    only=postgres,redis
else
    only=mysql,mariadb,postgres,redis
fi
JOBQUEUE_TEST_SETUP_MISSING="$missing" exec "$PY" -m tests.servers run --only "$only" -- "$PY" -m tests.suite "$@"
