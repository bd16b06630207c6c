"""runworker refuses bad options before it opens a database: there is none here."""

import os

import pytest

from tests.launch import ROOT, launch
from tests.patience import patient

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
    files, output = tmp_path / "files", tmp_path / "output"
    files.mkdir()
    env = os.environ | {"JOBQUEUE_TEST_DB": "sqlite", "JOBQUEUE_TEST_DIR": str(files)}
    env |= {"DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(ROOT)}
    assert launch(["runworker", *options], env, output).wait(patient()) == 2, output.read_text()
    assert "Traceback" not in output.read_text()
    assert not list(files.iterdir())
