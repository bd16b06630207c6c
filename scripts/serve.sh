#!/bin/sh
# make serve: a worker and the admin site at 127.0.0.1:8000 (PORT=...), until Ctrl-C. The password is printed and kept nowhere.
. "$(dirname "$0")/venv.sh"
# First of all: a busy port is known before anything is installed, migrated or started.
"$PY" -m demo_project.demo.port "${PORT:-8000}"
. "$(dirname "$0")/setup.sh"
exec "$PY" manage.py serve
