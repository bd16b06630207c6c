"""Every sub-command of `jobs` among two million jobs: its time as a process, and what it has read."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from django.db import connection

from jobqueue.management.commands.jobs import SUBCOMMANDS
from jobqueue.models import Job
from jobqueue.transitions import claim, fail
from tests.factories import make_job
from tests.launch import ROOT
from tests.marks import committed
from tests.patience import patient
from tests.proofs.operations.crowded import crowded
from tests.proofs.operations.reads import reads
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.timeout(3600)]
#: of a hundred jobs two in ten are alive
MIX = ((70, Job.Status.DONE, -90_000), (12, Job.Status.READY, -60), (8, Job.Status.READY, 90_000),
       (6, Job.Status.FAILED, -90_000), (4, Job.Status.CANCELED, -90_000))  # fmt: skip
Q = "crowd000"
#: rows that a table scan may read: those of small tables
SMALL = 1000


def commands(ids, fingerprint):
    """(words, exit statuses) of every sub-command; `ids`: jobs that it may change."""
    found = [0, 1, 5]
    return [
        (["list"], [0]),
        (["list", "--state", "failed", "--queue", Q], [0]),
        (["list", "--state", "ready", "--task", "crowd.tasks.work7"], [0]),
        (["list", "--cause", "data"], [0]),
        (["list", "--groups"], [0]),
        (["show", ids[0]], [0]),
        (["explain", ids[0], "--no-stacks"], [0]),
        (["explain", "--queue", Q, "--no-stacks"], [0]),
        (["explain", "--no-stacks"], [0]),
        (["retry", ids[0]], found),
        (["retry", "--fingerprint", fingerprint, "--dry-run"], found),
        (["retry", "--queue", Q, "--dry-run"], found),
        (["retry", "--everything", "--yes"], found),
        (["redrives"], [0]),
        (["note", fingerprint, "--text", "known"], [0]),
        (["note"], [0]),
        (["cancel", ids[1]], [0]),
        (["discard", ids[2]], [0]),
        (["release", ids[3]], [0]),
        (["enqueue", "tests.app.tasks.add", "--args", "[1, 2]"], [0]),
        (["prune", "--dry-run", "--max-time", "500ms"], found),
        (["prune", "--yes", "--max-time", "500ms", "--state", "done=1h"], found),
        (["groups"], [0]),
        (["keys"], [0]),
        (["keys", "--stuck"], [0]),
        (["queues"], [0]),
        (["queues", "pause", Q, "--reason", "a proof"], [0]),
        (["queues", "resume", Q], [0]),
        (["schedules"], [0]),
        (["workers"], [0]),
        (["locks"], [0]),
        (["stats"], [0]),
        (["stats", "--queue", Q], [0]),
        (["alarms"], found),
        (["unrunnable"], [0]),
        (["doctor"], found),
        (["bench", "--seconds", "500ms", "--jobs", "100"], [0]),
        (["completion", "bash"], [0]),
    ]


@pytest.fixture
def typed(evidence):
    """typed(words): (seconds, exit status, what was printed) of `jobs` as a process."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings_process",
        "JOBQUEUE_TEST_NAME": str(connection.settings_dict["NAME"]),
        "JOBQUEUE_TEST_LOG": str(evidence.path),
        "PYTHONPATH": str(ROOT),
    }

    def run(words):
        command = [sys.executable, str(ROOT / "manage.py"), "jobs", *map(str, words)]
        begun = time.perf_counter()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
        return time.perf_counter() - begun, done.returncode, done.stdout + done.stderr

    return run


def subjects():
    """Jobs that a command may change: one failed, two that wait, one that runs; and the fingerprint of the first."""
    failed = make_job("proved", max_attempts=1)
    fail(claim("proved", worker="w")[0], error=ValueError("no funds"))
    waits = [make_job("proved"), make_job("proved")]
    running = make_job("proved", priority=9)
    claim("proved", worker="w", lease_seconds=3600)
    return [failed, *waits, running], Job.objects.get(pk=failed).fingerprint


def test_every_command_is_fast_among_ten_million_jobs(typed, full, row):
    """2,000,000 jobs in 37 queues, 400,000 of them alive: seconds of each command as a process, and rows it read."""
    count = 2_000_000 if full else 20_000
    with crowded(count, 37, mix=MIX):
        ids, fingerprint = subjects()
        rows = commands(ids, fingerprint)
        assert {words[0] for words, _ in rows} == set(SUBCOMMANDS)
        slow, scans = {}, {}
        for words, statuses in rows:
            before = reads()
            seconds, status, said = typed(words)
            assert status in statuses, (words, status, said[-3000:])
            read = reads().since(before) if before else None
            line = " ".join(map(str, words))
            if seconds > (2 if full else patient(20)):
                slow[line] = seconds
            if read and read.scanned > SMALL + count // 100:
                scans[line] = read
            row(
                command=line,
                seconds=round(seconds, 2),
                rows_of_table_scans=read.scanned if read else "-",
                rows_read=read.rows if read else "-",
            )
            print(line, round(seconds, 2), read)
        # PostgreSQL may scan a small table, where that is cheaper.
        assert not slow, slow
        assert not (full or VENDOR == "mysql") or not scans, scans
