"""The line of a finished job, for people and for programs."""

import io
import json
import logging
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from jobqueue import log_format as log_events
from jobqueue.base.compat import signals as task_signals
from jobqueue.cli import process
from jobqueue.exceptions import Discard, Snooze
from jobqueue.log_format import JsonFormatter, TextFormatter, on_attempt_ended, on_job_reaped, on_lease_lost, one_line
from jobqueue.worker.log_writer import _Sender
from tests.marks import finding
from tests.patience import patient

ROOT = Path(__file__).parents[2]
FACTS = {
    "outcome": "ok",
    "job_id": 81237,
    "queue": "mail",
    "name": "emails.tasks.send_welcome",
    "attempt": 1,
    "max_attempts": 5,
    "wait_seconds": 0.038,
    "run_seconds": 0.212,
    "error": None,
}
FORGED = "mail\n12:00:00.000 ok    bank  pay  #1\r\x1b[2K\u2028\x85\u202e\x00"


@pytest.fixture
def written():
    """What a handler of the product writes, with the given formatter."""
    logger, made = logging.getLogger("jobqueue"), []
    before = (logger.level, logger.propagate)

    def start(formatter):
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        handler.setFormatter(formatter)
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        made.append(handler)
        return stream

    yield start
    for handler in made:
        logger.removeHandler(handler)
    logger.level, logger.propagate = before
    logger.manager._clear_cache()


class Trap(ValueError):
    """An exception whose chain raises, as one of a job may."""

    @property
    def __traceback__(self):
        raise SystemExit("gotcha")


@pytest.fixture
def log_of_a_command():
    """The handler of a command on a stream of its own, and a logger with it."""
    logger = logging.Logger("a command's")
    handler = process.LogHandler(io.StringIO())
    logger.addHandler(handler)
    return logger, handler.stream


def logs_while_it_is_handled(logger, **more):
    """Whether a line can be logged while that exception is being handled."""
    try:
        try:
            raise Trap("x")
        except Trap:
            logger.error("a line", **more)
    except SystemExit:
        return False
    return True


def test_a_line_that_cannot_be_written_is_dropped_whatever_exception_is_being_handled(log_of_a_command, capsys):
    logger, stream = log_of_a_command
    stream.close()
    assert logs_while_it_is_handled(logger)


def test_a_line_with_an_exception_that_cannot_be_shown_is_dropped(log_of_a_command, capsys):
    logger, stream = log_of_a_command
    try:
        raise ValueError("it has one that raises as its context") from Trap("x")
    except ValueError as error:
        found = error
    assert logs_while_it_is_handled(logger, exc_info=(ValueError, found, None))
    logger.error("the next line")
    assert stream.getvalue() == "the next line\n"


def test_a_child_counts_such_a_line_as_dropped():
    ours, theirs = socket.socketpair()
    logger = logging.Logger("a child's")
    logger.addHandler(_Sender(ours))
    try:
        raise ValueError("it has one that raises as its context") from Trap("x")
    except ValueError as error:
        found = error
    with ours, theirs:
        assert logs_while_it_is_handled(logger, exc_info=(ValueError, found, None))
        logger.error("the next line")
        sent = json.loads(theirs.recv(100_000))
    assert (sent["msg"], sent["dropped"]) == ("the next line", 1)


def test_the_line_of_a_job(written):
    stream = written(TextFormatter())
    on_attempt_ended(object, **FACTS)
    stamp, space, line = stream.getvalue().partition(" ")
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d\d\d", stamp)
    assert space
    assert line == "ok      mail  emails.tasks.send_welcome  #81237  try 1/5  wait 38ms  ran 212ms\n"


@pytest.mark.parametrize(
    ("outcome", "level"),
    [("ok", "info"), ("canceled", "info"), ("snoozed", "info"), ("discarded", "info"), ("retry", "warning"),
     ("parked", "warning"), ("lost", "warning"), ("dead", "error")],
)  # fmt: skip
def test_one_line_per_outcome_at_its_level(written, outcome, level):
    stream = written(JsonFormatter())
    error = None if outcome in ("ok", "lost") else ValueError("boom\nsecond line")
    on_attempt_ended(object, **{**FACTS, "outcome": outcome, "error": error})
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert (found["level"], found["event"], found["logger"]) == (level, outcome, "jobqueue.jobs")
    if error and outcome not in ("snoozed", "discarded"):
        assert found["message"].endswith("ValueError: boom second line")


def test_the_line_of_a_job_that_asked_for_its_end_has_no_class_of_an_exception(written):
    stream = written(TextFormatter())
    on_attempt_ended(object, **{**FACTS, "outcome": "snoozed", "error": Snooze(60), "delay_seconds": 60.0})
    on_attempt_ended(object, **{**FACTS, "outcome": "discarded", "error": Discard("order was deleted")})
    snoozed, discarded = stream.getvalue().splitlines()
    assert snoozed.endswith("ran 212ms  again in 1m 0s")
    assert discarded.endswith("ran 212ms  order was deleted")


def test_the_json_form_has_stable_keys(written):
    stream = written(JsonFormatter())
    on_attempt_ended(object, **FACTS)
    found = json.loads(stream.getvalue())
    keys = {"time", "level", "logger", "message", "event", "job_id", "queue", "handler", "attempt", "duration_ms"}
    assert set(found) == keys
    assert (found["job_id"], found["duration_ms"], found["attempt"]) == (81237, 212.0, 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found["time"])


@pytest.mark.parametrize("formatter", [TextFormatter, JsonFormatter])
@pytest.mark.parametrize("field", ["queue", "name", "error"])
def test_names_and_messages_cannot_forge_lines(written, formatter, field):
    stream = written(formatter())
    on_attempt_ended(object, **{**FACTS, field: ValueError(FORGED) if field == "error" else FORGED})
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert "\x1b" not in text
    assert "\r" not in text
    if formatter is TextFormatter:
        assert len(text.splitlines()) == 1
        assert "\u202e" not in text
    else:
        json.loads(text)


def test_workers_cannot_forge_lines(written):
    stream = written(TextFormatter())
    on_lease_lost(object, job_id=1, verb="ack", worker=FORGED, queue="q")
    on_job_reaped(object, job_id=1, attempt=2, worker=FORGED, queue="q")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert "job 1: the ack of mail\\n12" in lines[0]
    assert "in attempt 2" in lines[1]
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("text", ["", "plain", "한국어", "x" * 10_000, "\ud800", "\x00"])
def test_one_line_is_always_writable(text):
    made = one_line(text)
    made.encode()
    assert made.isprintable()
    assert len(made) <= 2100


def test_an_exception_that_cannot_be_printed_is_logged(written):
    class Bad(Exception):
        def __str__(self):
            raise RuntimeError

    stream = written(TextFormatter())
    on_attempt_ended(object, **{**FACTS, "outcome": "dead", "error": Bad()})
    assert "its message could not be printed" in stream.getvalue()


@finding("O-H1")
@pytest.mark.parametrize("formatter", [TextFormatter, JsonFormatter])
def test_a_traceback_and_the_text_of_a_trouble_have_no_secrets(written, formatter):
    stream = written(formatter())
    try:
        raise ValueError("no mysql://app:hunter2@db/x")
    except ValueError as error:
        logging.getLogger("jobqueue.worker").exception("given up: %s", error)
    assert "hunter2" not in stream.getvalue()
    assert stream.getvalue().count("app:********@db") == 3


def test_a_traceback_stays_inside_the_json_object(written):
    stream = written(JsonFormatter())
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("jobqueue.worker").exception("given up")
    found = json.loads(stream.getvalue())
    assert "ValueError: boom" in found["traceback"]
    assert stream.getvalue().count("\n") == 1


def caught(call):
    """The error that `call` raises."""
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"outcome": "retry", "delay_seconds": 5.04}, "ran 212ms  again in 5s  ValueError: boom"),
        ({"outcome": "retry", "delay_seconds": None}, "ran 212ms  ValueError: boom"),
        ({"outcome": "parked", "delay_seconds": 63.0}, "ran 212ms  again in 1m 3s  ValueError: boom"),
        ({"outcome": "dead", "attempt": 5}, "try 5/5  wait 38ms  ran 212ms  no attempts left  ValueError"),
        ({"outcome": "dead", "attempt": 2}, "try 2/5  wait 38ms  ran 212ms  not retried  ValueError"),
    ],
)
def test_the_line_of_a_run_that_failed_says_what_follows(written, facts, said):
    stream = written(TextFormatter())
    on_attempt_ended(object, **{**FACTS, "error": ValueError("boom"), **facts})
    assert said in stream.getvalue().splitlines()[0]


@pytest.mark.parametrize(
    ("outcome", "tracebacks", "shown"),
    [("retry", False, False), ("retry", True, True), ("dead", False, True), ("dead", True, True), ("ok", True, False)],
)
def test_the_last_failure_shows_its_traceback_and_the_others_if_asked_to(written, outcome, tracebacks, shown):
    stream = written(TextFormatter())
    error = None if outcome == "ok" else caught(lambda: json.loads("{"))
    on_attempt_ended(object, tracebacks=tracebacks, **{**FACTS, "outcome": outcome, "error": error})
    assert ("Traceback (most recent call last):" in stream.getvalue()) == shown


def test_a_traceback_is_indented_below_its_line_and_forges_none(written):
    stream = written(TextFormatter())

    def fail():
        raise ValueError("boom\n12:00:00.000 ok    bank  pay  #1\r\x1b[2K")

    on_attempt_ended(object, **{**FACTS, "outcome": "dead", "error": caught(fail)})
    _, *below = stream.getvalue().split("\n")[:-1]
    assert below[0] == " " * 13 + "Traceback (most recent call last):"
    assert below[-2:] == [
        " " * 13 + "ValueError: boom",
        " " * 13 + r"12:00:00.000 ok    bank  pay  #1\r\x1b[2K",
    ]


def test_the_json_form_has_the_traceback_and_the_delay_in_keys_of_their_own(written):
    stream = written(JsonFormatter())
    facts = {**FACTS, "outcome": "retry", "error": caught(lambda: json.loads("{")), "delay_seconds": 5.2}
    on_attempt_ended(object, tracebacks=True, **facts)
    found = json.loads(stream.getvalue())
    assert found["traceback"].startswith("Traceback")
    assert found["delay_seconds"] == 5.2


@pytest.mark.parametrize(
    ("verbosity", "debug", "expected"), [(1, False, False), (1, True, True), (2, False, True), (3, False, True)]
)
def test_tracebacks_of_all_failures_are_for_debug_and_verbosity_2(fresh, settings, verbosity, debug, expected):
    settings.DEBUG = debug
    process.set_up_logging(verbosity, "text", None)
    stream = fresh.handlers[0].stream = io.StringIO()
    error = caught(lambda: json.loads("{"))
    log_events.attempt_ended.send(object, **{**FACTS, "outcome": "retry", "error": error})
    assert ("Traceback" in stream.getvalue()) == expected


@pytest.mark.parametrize(("verbosity", "shown"), [(1, False), (2, False), (3, True)])
def test_details_are_for_verbosity_3(fresh, verbosity, shown):
    process.set_up_logging(verbosity, "text", None)
    stream = fresh.handlers[0].stream = io.StringIO()
    logging.getLogger("jobqueue.detail").debug("nothing is due")
    assert bool(stream.getvalue()) == shown


@pytest.mark.parametrize("debug", [True, False])
def test_djangos_own_line_about_a_failed_task_does_not_reach_the_terminal(debug):
    script = RECEIVER.partition("def broken")[0] + (
        "from jobqueue.base.compat import signals\nsignals.logger.error('Task id=1 state=FAILED')\n"
        "import logging\nlogging.getLogger('jobqueue.jobs').error('dead')"
    )
    command = [sys.executable, "-c", script, "debug" if debug else "production", "django"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=patient())
    assert done.returncode == 0, done.stderr
    assert "dead" in done.stderr
    assert "Task id=1" not in done.stderr


@pytest.fixture
def fresh(monkeypatch):
    """A logger tree that nobody has set up."""
    logger = logging.getLogger("jobqueue")
    monkeypatch.setattr(task_signals.logger, "handlers", [])
    monkeypatch.setattr(logging.getLogger("jobqueue.detail"), "level", logging.NOTSET)
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    level = logger.level
    log_events.attempt_ended.disconnect(dispatch_uid="jobqueue.log")
    yield logger
    logger.setLevel(level)
    log_events.attempt_ended.disconnect(dispatch_uid="jobqueue.log")


@pytest.mark.parametrize(
    ("verbosity", "level", "per_job"),
    [(0, "WARNING", False), (1, "INFO", True), (2, "DEBUG", True), (3, "DEBUG", True)],
)
def test_verbosity(fresh, verbosity, level, per_job):
    process.set_up_logging(verbosity, "text", None)
    assert logging.getLevelName(fresh.level) == level
    assert bool(log_events.attempt_ended.receivers) == per_job
    assert len(fresh.handlers) == 1
    assert not fresh.propagate


@pytest.mark.parametrize(("form", "kind"), [("text", TextFormatter), ("json", JsonFormatter), ("auto", JsonFormatter)])
def test_the_format_follows_the_option(fresh, form, kind):
    process.set_up_logging(1, form, None)
    assert type(fresh.handlers[0].formatter) is kind


def test_the_projects_own_handlers_are_left_alone(fresh):
    own = logging.NullHandler()
    fresh.addHandler(own)
    process.set_up_logging(1, "json", None)
    assert fresh.handlers == [own]
    assert fresh.propagate


RECEIVER = """
import sys
from django.conf import settings
databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
console = {"handlers": {"own": {"class": "logging.StreamHandler"}}, "root": {"handlers": ["own"]}}
console |= {"version": 1, "disable_existing_loggers": False}
apps = ["django.contrib.auth", "django.contrib.contenttypes", "jobqueue"]
backend = {"default": {"BACKEND": "jobqueue.backends.JobQueueBackend"}}
own = {"LOGGING": console} if sys.argv[2] == "own" else {}
settings.configure(DEBUG=sys.argv[1] == "debug", INSTALLED_APPS=apps, DATABASES=databases, TASKS=backend, **own)
import django
django.setup()
from jobqueue.cli import process
from jobqueue.signals import job_done, send
process.set_up_logging(1, "text", None)
def broken(**facts):
    raise ValueError("receiver is broken")
job_done.connect(broken)
send(job_done, object, job_id=1)
"""


# A root handler of the project's beside Django's console for DEBUG is two by itself.
@pytest.mark.parametrize(
    ("debug", "logging_of"), [("debug", "django"), ("production", "django"), ("production", "own")]
)
def test_what_a_receiver_raises_is_shown_once(debug, logging_of):
    command = [sys.executable, "-c", RECEIVER, debug, logging_of]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=patient())
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ValueError: receiver is broken") == 1
