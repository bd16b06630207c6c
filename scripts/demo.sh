#!/bin/sh
# make demo: real jobs, a killed worker, orders and a killed relay, a race for serial numbers, a limit and a pause, an outage, a month closed by a schedule, and the proof. Exit status 0 if every proof holds.
# It makes a database of its own: .demo/demo.sqlite3, or NAME_demo beside the database NAME of DATABASE_URL.
. "$(dirname "$0")/setup.sh"
exec "$PY" manage.py demo
