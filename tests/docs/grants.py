"""The account of howto/deploy.md: what it may do is enough for a worker, and no more."""

from __future__ import annotations

import os
import subprocess
import sys
from urllib.parse import quote

from django.db import connection

from jobqueue import enqueue
from jobqueue.models import Job
from tests.docs.markdown import ROOT
from tests.patience import patient
from tests.settings import VENDOR


def try_account():
    """A worker that logs in as `jobs` runs a job; it cannot change the table."""
    kind = "postgres" if VENDOR == "postgres" else "mysql"
    settings = connection.settings_dict
    url = f"{kind}://jobs:change-me@{settings['HOST']}:{settings['PORT']}/{quote(settings['NAME'])}"
    job_id = enqueue("webhooks", {"n": 1})
    environment = {**os.environ, f"JOBQUEUE_TEST_{VENDOR.upper()}_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    try:
        for code, status in ((WORK, 0), (ALTER, 1)):
            command, limit = [sys.executable, "-c", code], patient()
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit)
            assert done.returncode == status, done.stderr
        assert Job.objects.get(pk=job_id).status == Job.Status.DONE
    finally:
        forget_account()


def forget_account():
    """Drop the account, also one that an earlier run left behind. Accounts belong to the whole server."""
    with connection.cursor() as cursor:
        if VENDOR in ("mysql", "mariadb"):
            cursor.execute("DROP USER IF EXISTS 'jobs'@'%'")
        elif VENDOR == "postgres":
            cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = 'jobs'")
            if cursor.fetchone():
                cursor.execute("DROP OWNED BY jobs")
                cursor.execute("DROP ROLE jobs")


WORK = """
import django; django.setup()
from django.core.management import call_command
call_command("runworker", "--drain", "--no-reload")
"""
ALTER = """
import django; django.setup()
from django.db import connection
connection.cursor().execute("ALTER TABLE job_queue ADD COLUMN nope int")
"""
