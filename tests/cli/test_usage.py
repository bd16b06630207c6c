"""Usage errors are exit status 2 and words, never a traceback."""

import os
import subprocess
import sys

import pytest
from django.core.management.base import CommandError

from tests.cli.helpers import options, refused

NUMBERS = [
    "-1",
    "0",
    "nan",
    "inf",
    "1e3",
    "",
    " ",
    "1.5",
    "0x10",
    "\uff11\uff10",
    "\u0661",
    "9" * 400,
    "1;--",
    "'",
    "1\n2",
]


@pytest.mark.parametrize("flag", ["--concurrency", "--processes", "--batch-size", "--max-jobs"])
@pytest.mark.parametrize("value", NUMBERS)
def test_a_count_that_is_none_is_refused(capsys, flag, value):
    assert flag in refused(capsys, "runworker", f"{flag}={value}")


DURATIONS = [
    "0",
    "0s",
    "-1",
    "-1s",
    "nan",
    "inf",
    "",
    "1e9",
    "1 s 2",
    "10x",
    "\u22121",
    "\u0661s",
    "9" * 30,
    "'",
    "1h30m",
]


@pytest.mark.parametrize("flag", ["--lease", "--heartbeat", "--max-time", "--idle-exit", "--db-retry", "--poll"])
@pytest.mark.parametrize("value", DURATIONS)
def test_a_duration_that_is_none_is_refused(capsys, flag, value):
    assert flag in refused(capsys, "runworker", f"{flag}={value}")


@pytest.mark.parametrize("value", ["2s..1s", "..", "1s..", "..1s", "1s..2s..3s", "0..1s"])
def test_a_range_that_is_none_is_refused(capsys, value):
    assert "--poll" in refused(capsys, "runworker", f"--poll={value}")


@pytest.mark.parametrize("value", ["0", "-1", "M", "1T", "1.5G", "", "9" * 30, "\uff11M"])
def test_a_size_that_is_none_is_refused(capsys, value):
    assert "--max-rss" in refused(capsys, "runworker", f"--max-rss={value}")


QUEUES = [
    ",",
    "a,,b",
    "a:0",
    "a:-1",
    "a:x",
    "a:1:2",
    "a:1001",
    "*x",
    "x" * 65,
    "a\nb",
    "a\x00b",
    "a:nan",
    "\ud800",
]


@pytest.mark.parametrize("value", QUEUES)
def test_a_queue_that_cannot_be_is_refused(capsys, value):
    refused(capsys, "runworker", f"--queues={value}")


@pytest.mark.parametrize(
    "words",
    [
        ("--lease", "30s", "--heartbeat", "10s"),
        ("--lease", "1ms", "--heartbeat", "1s"),
        ("--database", "nowhere"),
        ("--database", "'; DROP TABLE job_queue; --"),
        ("--database", ""),
        ("--worker-name", "x" * 91),
        ("--worker-name", ""),
        ("--worker-name", "a\nb"),
        ("--on-timeout", "later"),
        ("--log-format", "xml"),
        ("--lease",),
        ("--no-such-option",),
        ("--shutdown-timeout=-1",),
        ("",),
        ("a,",),
    ],
    ids=" ".join,
)
def test_contradictions_and_unknown_words_are_refused(capsys, words):
    refused(capsys, "runworker", *words)


@pytest.mark.parametrize("word", ["\u2013once", "\u2014drain", "\u2212\u2212lease", "\u2010-once"])
def test_typographic_dashes_are_refused(word):
    with pytest.raises(CommandError):
        options(word)


def test_a_lease_beyond_a_year_is_refused():
    with pytest.raises((CommandError, SystemExit)):
        options("--lease", "9999999d")


@pytest.mark.parametrize(
    "words",
    [("--limit=0",), ("--limit=-1",), ("--limit=nan",), ("--limit=1000000",), ("--limit=",), ("--interval=0",),
     ("--interval=-5",), ("--interval=nan",), ("--interval",), ("--database", "nowhere"), ("\u2013json",), ("queue",)],
    ids=" ".join,
)  # fmt: skip
def test_reap_leases_refuses_nonsense(capsys, words):
    refused(capsys, "reap_leases", *words)


def test_the_commands_end_with_2_as_processes_too():
    for words in (["runworker", "--lease", "0"], ["runworker", "--concurrency", "-1"], ["reap_leases", "--limit", "x"]):
        done = subprocess.run(
            [sys.executable, "-m", "django", *words],
            capture_output=True,
            text=True,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        )
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""
