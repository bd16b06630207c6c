"""runworker refuses bad options before it opens a database: there is none here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import patient

ROOT = Path(__file__).resolve().parents[2]

USAGE = [
    ("--lease", "0"),
    ("--lease", "-1"),
    ("--lease", "10s", "--heartbeat", "5s"),
    ("--concurrency", "-1"),
    ("--concurrency", "0"),
    ("--concurrency", "x"),
    ("--async-concurrency", "0"),
    ("--processes", "1.5"),
    ("--poll", "200ms..50ms"),
    ("--queues", "a,,b"),
    ("--queues", "x:0"),
    ("--queues", "a\nb"),
    ("--batch-size", "NaN"),
    ("--database", "nope"),
    ("--max-rss", "lots"),
    ("--bogus",),
    ("--max-jobs", "0"),
    ("--worker-name", "w" * 200),
    ("--shutdown-timeout", "-1"),
]


@pytest.mark.parametrize("options", USAGE, ids=" ".join)
def test_bad_usage_exits_2_without_a_traceback(options, tmp_path):
    env = os.environ | {"JOBQUEUE_TEST_DB": "sqlite", "JOBQUEUE_TEST_DIR": str(tmp_path)}
    env |= {"DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "manage.py", "runworker", *options]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=patient(60), check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
