"""`jobs prune` as an operator runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from django.db import connection

from tests.launch import ROOT


def prune(*options):
    """The ids that it prints."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.proofs.schedules.settings",
        "JOBQUEUE_TEST_NAME": str(connection.settings_dict["NAME"]),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "manage.py", "jobs", "prune", "--list", "--json", *options]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = json.loads(ended.stdout)
    assert found["complete"]
    return found["ids"]
