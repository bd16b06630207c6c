"""--watch: the blocks that it prints, on a terminal and elsewhere, and how it ends."""

import os
import pty
import signal
from io import StringIO

import pytest
from django.core.management.base import OutputWrapper
from django.db import OperationalError

from jobqueue.cli.output import Result, Subcommand, repeat
from jobqueue.maintenance.worker_rows import register
from jobqueue.models import Worker
from tests.cli.helpers import read_until
from tests.cli.processes import start
from tests.marks import committed
from tests.patience import patient

LINES = {"watch": 0.001, "json": False, "verbosity": 1}


class Terminal(StringIO):
    def isatty(self):
        return True


def watched(*looks, target=None, **given):
    """What it prints for these looks, each a line, a Result or an error; it is interrupted after the last one."""
    target, left = target or StringIO(), iter(looks)

    def look():
        found = next(left, KeyboardInterrupt())
        if isinstance(found, BaseException):
            raise found
        return found if isinstance(found, Result) else Result(lines=[found])

    assert repeat(look, OutputWrapper(target), "default", LINES | given, words="workers") == 0
    return target.getvalue()


def test_without_it_the_look_is_shown_once_and_gives_the_status():
    out = StringIO()
    looks = Subcommand("", lambda parser: None, lambda using, given: Result(lines=["a"], status=5), watched="w")
    assert looks.perform(OutputWrapper(out), "default", LINES | {"watch": None}) == 5
    assert out.getvalue() == "a\n"


def test_blocks_have_an_empty_line_between_them():
    assert watched("a", "b") == "a\n\nb\n"


def test_each_json_object_is_a_line():
    one, two = Result({"a": 1}), Result({"a": 2})
    assert watched(one, two, json=True) == '{"version": 1, "a": 1}\n{"version": 1, "a": 2}\n'
    assert watched(one, json=True, target=Terminal()) == '{"version": 1, "a": 1}\n'


def test_a_terminal_is_cleared_for_each_block_below_a_line_that_says_what_it_shows():
    head = "\x1b[H\x1b[Jworkers, every 1ms; Ctrl-C ends it\n\n"
    assert watched("a", "b", target=Terminal()) == f"{head}a\n{head}b\n"


@pytest.mark.django_db
def test_after_an_error_of_the_database_it_goes_on_and_says_so(capsys):
    assert watched(OperationalError("it is gone"), "b") == "b\n"
    said = capsys.readouterr().err
    assert said.startswith("the queue on 'default' cannot be read: it is gone. To find out why, run: manage.py check")
    assert said.endswith("Trying again in 1ms.\n")


@pytest.mark.django_db
def test_a_secret_in_an_error_of_the_database_is_masked(capsys):
    assert watched(OperationalError("refused: password=hunter2zz")) == ""
    said = capsys.readouterr().err
    assert "password=********" in said
    assert "hunter2zz" not in said


@pytest.mark.django_db
def test_a_terminal_keeps_the_last_block_during_an_error(capsys):
    shown = watched("a", OperationalError("it is gone"), target=Terminal())
    assert [block.splitlines()[-1] for block in shown.split("\x1b[H\x1b[J")[1:]] == ["a", "a"]
    assert "it is gone" in capsys.readouterr().err


@committed
def test_on_a_real_terminal_it_shows_changes_until_it_is_interrupted():
    ours, theirs = pty.openpty()
    try:
        with start("workers", "--watch", "100ms", stdin=theirs, stdout=theirs) as process:
            assert "\x1b[H\x1b[J" in read_until(ours, "no worker runs")
            register("new", supervisor_pid=1, boot_id="b", queues="*", concurrency=1, using="default")
            read_until(ours, "supervisor 1 on")
            Worker.objects.all().delete()
            read_until(ours, "no worker runs")
            process.send_signal(signal.SIGINT)
            assert process.wait(patient()) == 0
            assert process.stderr.read() == b""
    finally:
        os.close(ours)
        os.close(theirs)
