#!/bin/sh
# make demo: real jobs, a killed worker, orders and a killed relay, a race for serial numbers, and the proof. Exit status 0 if every proof holds.
. "$(dirname "$0")/setup.sh"
exec "$PY" manage.py demo
