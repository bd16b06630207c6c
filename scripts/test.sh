#!/bin/sh
# make test: set up, start the real servers, run the suite on every database, stop them again.
. "$(dirname "$0")/venv.sh"

missing="" only=mysql,mariadb,postgres,redis
# Django 5.2 whatever the Python: the newest Django has an environment of its own.
lts='Django>=5.2,<6'
if mysql_headers && install -e '.[dev]' "$lts"; then
    # What django6.sh prints is the reason why there is no Django 6.
    if missing=$(sh scripts/django6.sh); then
        JOBQUEUE_TEST_PYTHON6=$PWD/.venv-6/bin/python
        export JOBQUEUE_TEST_PYTHON6
    fi
else
    if [ "${CI:-}" = true ]; then
        echo "CI=true and the test requirements could not be installed: see above." >&2
        exit 1
    fi
    missing="mysqlclient could not be built, so MySQL and MariaDB are not tested, nor Django 6.x"
    only=postgres,redis
    install -e '.[compat,demo,postgres]' "$lts" pytest pytest-django pytest-randomly pytest-timeout redis PyYAML jsonschema
fi
JOBQUEUE_TEST_SETUP_MISSING="$missing" exec "$PY" -m tests.servers run --only "$only" -- "$PY" -m tests.suite "$@"
