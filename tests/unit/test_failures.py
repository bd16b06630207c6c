"""How whatever a job raises is classed and written down."""

import socket
from pathlib import Path

import pytest
from django.db import IntegrityError, OperationalError

import jobqueue
from jobqueue.base.validation import check_queue
from jobqueue.exceptions import JobLost, PayloadError, ResultError, SoftTimeout
from jobqueue.failures import (
    ERROR_BYTES,
    FailureCause,
    classify,
    describe,
    is_permanent,
    project_trace,
    storable,
    summary,
)
from tests.app.tasks import Unprintable
from tests.marks import finding

PACKAGE = Path(jobqueue.__file__).parent

CAUSES = [
    (JobLost("x"), "lost"),
    (SoftTimeout("x"), "timeout"),
    (ResultError("x"), "format"),
    (PayloadError("x"), "format"),
    (ValueError(), "data"),
    (KeyError("x"), "data"),
    (TypeError(), "data"),
    (ZeroDivisionError(), "data"),
    (MemoryError(), "resource"),
    (RecursionError(), "resource"),
    (OSError(28, "no space"), "resource"),
    (ConnectionResetError(), "dependency"),
    (TimeoutError(), "dependency"),
    (socket.gaierror(), None),
    (OperationalError(), "dependency"),
    (IntegrityError(), "data"),
    (SystemExit(3), "unknown"),
    (KeyboardInterrupt(), "unknown"),
    (GeneratorExit(), "unknown"),
    (Exception(), "unknown"),
    ("text", "unknown"),
    ("", "unknown"),
    (Unprintable(), "unknown"),
]


@pytest.mark.parametrize(("error", "cause"), CAUSES, ids=lambda v: type(v).__name__)
def test_every_error_has_a_cause(error, cause):
    found = classify(error)
    assert isinstance(found, FailureCause)
    assert cause is None or found == cause


@finding("item-6")
@pytest.mark.parametrize("error", [socket.gaierror(-2, "Name or service not known"), socket.herror(1)])
def test_a_host_whose_name_cannot_be_resolved_is_a_dependency(error):
    assert classify(error) == "dependency"


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


class BadNotes(Exception):
    """Its notes are not what Python expects."""

    __notes__ = 5


class NoStr(Exception):
    """Its text is not text."""

    def __str__(self):
        return 5


class Killer(Exception):
    """Leaves when printed."""

    def __str__(self):
        raise SystemExit(1)


class BadCause(Exception):
    """Its class lies about its name."""


BadCause.__qualname__ = "a\x00b\ud800" * 100

STRANGE = [
    Unprintable(),
    BadNotes("x"),
    NoStr(),
    Killer(),
    BadCause("x"),
    ValueError("\x00"),
    ValueError("\ud800"),
    ValueError("😀" * 10),
    ValueError("x" * 10_000_000),
    ValueError("\udfff" * 1_000_000),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    ExceptionGroup("g", [ValueError("a"), ExceptionGroup("h", [Unprintable()])]),
    RecursionError("deep"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    BaseExceptionGroup("b", [SystemExit(2)]),
    SyntaxError("x", ("f", 1, 1, "t")),
]


@pytest.mark.parametrize("error", STRANGE, ids=lambda e: type(e).__name__)
def test_every_exception_can_be_written_down_for_every_database(error):
    for text, limit in ((describe(raised(error)), 65_535), (summary(raised(error)), 500)):
        raw = text.encode()
        assert 0 < len(raw) <= limit
        assert b"\x00" not in raw


def test_a_traceback_shows_where_and_what():
    text = describe(raised(ValueError("the amount is negative")))
    assert "in raised" in text
    assert text.rstrip().endswith("ValueError: the amount is negative")


def test_a_traceback_never_shows_local_variables():
    def handler():
        password = "hunter2"
        assert password
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom") as caught:
        handler()
    assert "hunter2" not in describe(caught.value).replace('password = "hunter2"', "")


def test_a_deep_recursion_is_written_down():
    def down(n):
        return down(n + 1)

    with pytest.raises(RecursionError) as caught:
        down(0)
    assert "RecursionError" in describe(caught.value)


def test_a_huge_text_keeps_its_beginning_and_its_end():
    text = storable("begin" + "x" * 10_000_000 + "end")
    assert len(text.encode()) <= ERROR_BYTES
    assert text.startswith("begin")
    assert text.endswith("end")
    assert "left out" in text


@pytest.mark.parametrize("character", ["é", "큐", "😀"])
@pytest.mark.parametrize("limit", range(180, 190))
def test_cutting_never_splits_a_character(character, limit):
    text = storable(character * 200, limit)
    assert len(text.encode()) <= limit
    assert set(text) <= {character, "."}


def test_only_an_unstorable_result_is_permanent():
    assert is_permanent(ResultError("x"))
    assert not is_permanent(PayloadError("x"))
    assert not is_permanent(ValueError())
    assert not is_permanent("format")


def test_text_is_kept_as_it_is_and_emptiness_gets_a_word():
    assert describe("disk full") == "disk full"
    assert describe("")
    assert summary("one\ntwo") == "one"
    assert summary("  ")


def called_by(path, call):
    """The error of `call`, which a function in this file of the package calls."""
    names = {}
    exec(compile("def run(call): call()", str(PACKAGE / path), "exec"), names)
    try:
        names["run"](call)
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


def refund(order=7):
    try:
        {}["order"]
    except KeyError:
        raise ValueError(f"no order {order}")  # noqa: B904


def test_the_trace_of_a_projects_error_has_no_frame_of_this_package():
    text = project_trace(called_by("worker/run/perform.py", refund))
    assert "jobqueue/worker" not in text
    assert text.count('test_failures.py", line') == 2
    assert "KeyError: 'order'\n\nDuring handling" in text
    assert ", in refund\n    raise ValueError(f" in text
    assert text.endswith("\nValueError: no order 7")


def test_the_trace_of_a_refusal_ends_at_the_line_of_the_project_that_caused_it():
    def job():
        check_queue("a,b")

    text = project_trace(called_by("worker/run/perform.py", job))
    assert "/jobqueue/" not in text
    assert ', in job\n    check_queue("a,b")\n' in text
    assert text.splitlines()[-1].startswith("jobqueue.exceptions.InvalidValue: ")


def test_the_trace_of_an_error_that_this_package_caused_is_whole():
    text = project_trace(called_by("worker/run/perform.py", lambda: storable(None)))
    assert "jobqueue/worker/run/perform.py" in text
    assert "jobqueue/failures/text.py" in text


def test_a_trace_is_printable_for_whatever_was_raised():
    assert "Unprintable" in project_trace(Unprintable())
    assert project_trace(ValueError("never raised")) == "ValueError: never raised"
