#!/bin/sh
# Build the wheel and look into it: templates, static files, locale and py.typed must be there, tests must not.
. "$(dirname "$0")/venv.sh"

install -e '.[dev]'
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$PY" -m build --quiet --wheel --outdir "$out" .
"$PY" - "$out" <<'PYTHON'
import pathlib, sys, zipfile

(wheel,) = pathlib.Path(sys.argv[1]).glob("*.whl")
names = zipfile.ZipFile(wheel).namelist()
wanted = [
    "jobqueue/py.typed",
    "jobqueue/templates/admin/jobqueue/change_list.html",
    "jobqueue/static/jobqueue/admin.css",
    "jobqueue/locale/ko/LC_MESSAGES/django.mo",
    "jobqueue/migrations/0001_initial.py",
    "jobqueue/management/commands/runworker.py",
    "jobqueue/testing/plugin.py",
]
missing = [name for name in wanted if name not in names]
strange = [name for name in names if not name.startswith(("jobqueue/", "jobqueue-"))]
if missing or strange:
    sys.exit(f"{wheel.name}: missing {missing}, should not be there {strange}")
print(f"{wheel.name}: {len(names)} files, all that is needed is in it")
PYTHON
