"""Flag before environment before settings; help; the pid file."""

import os
import subprocess
import sys
from argparse import ArgumentParser
from io import StringIO

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import CommandError

from jobqueue.cli import process, worker_options
from jobqueue.management.commands.runworker import Command
from tests.cli.helpers import options, refused
from tests.patience import wait_until


def test_defaults():
    made = options()
    assert (made.concurrency, made.processes, made.batch_size, made.database) == (4, 1, 100, "default")
    assert (made.lease_seconds, made.heartbeat_seconds, made.shutdown_seconds) == (60, 15, 30)
    assert str(made.selection) == "*"
    assert made.reaper
    assert not made.reload


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("CONCURRENCY", "7", "concurrency", 7),
        ("LEASE", "2m", "lease_seconds", 120.0),
        ("BATCH_SIZE", "9", "batch_size", 9),
        ("MAX_RSS", "512M", "max_rss_bytes", 512 * 2**20),
        ("RECYCLE_JOBS", "1000", "recycle_jobs", 1000),
        ("RECYCLE_TIME", "1h", "recycle_seconds", 3600.0),
        ("POLL", "1s..2s", "poll_high_seconds", 2.0),
        ("SHUTDOWN_TIMEOUT", "0", "shutdown_seconds", 0.0),
        ("DRAIN", "1", "drain", True),
        ("DRAIN", "no", "drain", False),
        ("DRAIN", "", "drain", False),
        ("NO_REAPER", "true", "reaper", False),
        ("NO_ADAPTIVE", "1", "adaptive", False),
        ("RELOAD", "on", "reload", True),
        ("NO_RELOAD", "1", "reload", False),
        ("ON_TIMEOUT", "wait", "on_timeout", "wait"),
        ("WORKER_NAME", "me", "name", "me"),
    ],
)
def test_the_environment_gives_defaults(monkeypatch, name, value, field, expected):
    monkeypatch.setenv(f"JOBQUEUE_WORKER_{name}", value)
    assert getattr(options(), field) == expected


def test_queues_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("JOBQUEUE_WORKER_QUEUES", "mail:5,web")
    assert str(options().selection) == "mail:5, web"


def test_a_flag_beats_the_environment_and_that_beats_the_settings(monkeypatch, settings):
    settings.JOBQUEUE = {"LEASE_SECONDS": 40}
    assert (options().lease_seconds, options().heartbeat_seconds) == (40, 10)
    monkeypatch.setenv("JOBQUEUE_WORKER_LEASE", "50s")
    assert (options().lease_seconds, options().heartbeat_seconds) == (50, 12.5)
    assert options("--lease", "70").lease_seconds == 70
    monkeypatch.setenv("JOBQUEUE_WORKER_QUEUES", "a")
    assert str(options("--queues", "b").selection) == "b"


@pytest.mark.parametrize(
    ("name", "value"),
    [("CONCURRENCY", "-1"), ("LEASE", "0"), ("ONCE", "perhaps"), ("ON_TIMEOUT", "later"), ("POLL", "x"), ("LEASE", "")],
)
def test_a_bad_default_in_the_environment_is_a_usage_error(capsys, monkeypatch, name, value):
    monkeypatch.setenv(f"JOBQUEUE_WORKER_{name}", value)
    assert f"JOBQUEUE_WORKER_{name}" in refused(capsys, "runworker")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a", "b:2"], "a, b:2"),
        (["a", "--queues", "c"], "a, c"),
        (["--queues=-mail"], "*, -mail"),
        (["--queues", "a,*:3,-b"], "a, *:3, -b"),
    ],
)
def test_queues(words, expected):
    assert str(options(*words).selection) == expected


def test_once_means_one():
    made = options("--once", "--concurrency", "8", "--processes", "3")
    assert (made.concurrency, made.processes, made.quota(0)) == (1, 1, 1)


def test_a_broken_setting_is_exit_status_4(settings):
    settings.JOBQUEUE = {"LEASE": 1}
    words, errors = ["--once"], StringIO()
    with pytest.raises(ImproperlyConfigured):
        options(*words)
    with pytest.raises(SystemExit) as stopped:
        call_command("runworker", *words, stderr=errors)
    assert stopped.value.code == 4
    assert "unknown key 'LEASE'" in errors.getvalue()


def test_help_names_every_option_and_no_secret(capsys, settings):
    parser = ArgumentParser()
    worker_options.declare(parser)
    text = parser.format_help()
    for flag in ("--queues", "--lease", "--heartbeat", "--on-timeout", "--pidfile", "--dry-run", "--fail-on-error"):
        assert flag in text
    password = settings.DATABASES["default"].get("PASSWORD")
    assert not password or password not in text


def test_help_shows_the_options_in_groups_with_examples_that_can_be_run():
    parser = Command().create_parser("manage.py", "runworker")
    lines = parser.format_help().splitlines()
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles[0] == "which jobs:"
    assert titles[-2:] == ["options:", "examples:"]
    assert len(titles) >= 8
    examples = [line.strip().partition("   ")[0] for line in lines if line.startswith("  python manage.py runworker")]
    assert len(examples) >= 6
    for line in examples:
        assert worker_options.build(vars(parser.parse_args(line.split()[3:])))


class TestPidfile:
    def test_it_is_there_while_it_is_held(self, tmp_path):
        path = tmp_path / "pid"
        with process.pid_file(str(path)):
            assert path.read_text() == f"{os.getpid()}\n"
        assert not path.exists()

    def test_a_place_that_cannot_be_written_is_a_usage_error(self, tmp_path):
        with pytest.raises(CommandError) as refused:
            with process.pid_file(str(tmp_path / "missing" / "pid")):
                pass
        assert refused.value.returncode == 2

    def test_none_needs_none(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with process.pid_file(None):
            assert not list(tmp_path.iterdir())

    def test_a_living_worker_is_not_replaced(self, tmp_path):
        path = tmp_path / "pid"
        command = [sys.executable, "-c", "input()", "runworker"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as worker:
            path.write_text(f"{worker.pid}\n")
            # Popen() returns a moment before the system has the new command line.
            wait_until(lambda: process._may_be_worker(worker.pid), what="the command line of the worker")
            with pytest.raises(CommandError, match="is running") as refused:
                with process.pid_file(str(path)):
                    pass
            worker.kill()
        assert refused.value.returncode == 2
        assert path.read_text() == f"{worker.pid}\n"

    @pytest.mark.skipif(not os.path.exists("/proc/self/cmdline"), reason="the system does not say what a process is")
    def test_another_process_that_has_the_number_of_a_dead_worker_does_not_stop_it(self, tmp_path):
        path = tmp_path / "pid"
        path.write_text("1\n")
        with process.pid_file(str(path)):
            assert path.read_text() == f"{os.getpid()}\n"

    def test_the_target_of_a_link_is_not_overwritten(self, tmp_path):
        precious, path = tmp_path / "precious", tmp_path / "pid"
        precious.write_text("precious data")
        path.symlink_to(precious)
        with pytest.raises(CommandError) as refused:
            with process.pid_file(str(path)):
                pass
        assert refused.value.returncode == 2
        assert precious.read_text() == "precious data"

    @pytest.mark.parametrize("left", ["", "x", "999999999", "-5", "0x1"])
    def test_what_a_dead_worker_left_is_replaced(self, tmp_path, left):
        path = tmp_path / "pid"
        path.write_text(left)
        with process.pid_file(str(path)):
            assert path.read_text() == f"{os.getpid()}\n"

    def test_the_number_of_a_dead_worker_that_another_process_has_now_is_replaced(self, tmp_path):
        path = tmp_path / "pid"
        path.write_text(f"{os.getppid()}\n")
        os.utime(path, (0, 0))
        with process.pid_file(str(path)):
            assert path.read_text() == f"{os.getpid()}\n"

    def test_a_symbolic_link_is_not_followed(self, tmp_path):
        precious, path = tmp_path / "precious", tmp_path / "pid"
        precious.write_text("data")
        path.symlink_to(precious)
        with pytest.raises(CommandError, match="symbolic link") as refused:
            with process.pid_file(str(path)):
                pass
        assert refused.value.returncode == 2
        assert precious.read_text() == "data"
