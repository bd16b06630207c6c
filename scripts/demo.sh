#!/bin/sh
# make demo: real jobs, a killed worker, orders and a killed relay, a race for serial numbers, a limit and a pause, an outage, a month closed by a schedule, and the proof. Exit status 0 if every proof holds.
# It makes a database of its own: .demo/demo.sqlite3, or NAME_demo beside the database NAME of DATABASE_URL.
echo "jobqueue demo: real workers run jobs, some are killed, nothing is lost; takes one to two minutes."
[ -x "$(dirname "$0")/../.venv/bin/python" ] || echo "First it installs what it needs into .venv, which takes another half minute."
. "$(dirname "$0")/setup.sh"
exec "$PY" manage.py demo
