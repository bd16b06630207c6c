#!/bin/sh
# make lint: format, lint, types, migrations.
. "$(dirname "$0")/venv.sh"

mysql_headers
install -e '.[dev]'
"$PY" -m ruff check .
"$PY" -m ruff format --check .
"$PY" -m mypy
DJANGO_SETTINGS_MODULE=tests.settings JOBQUEUE_TEST_DB=sqlite "$PY" manage.py makemigrations --check --dry-run
