#!/bin/sh
# make serve: a worker and the admin site at 127.0.0.1:8000, until Ctrl-C. The password is printed and kept nowhere.
. "$(dirname "$0")/setup.sh"
exec "$PY" manage.py serve
