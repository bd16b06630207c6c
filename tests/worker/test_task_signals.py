"""What Django Tasks' signals cost when nobody would notice them, and what they carry."""

import logging
import sys

import django
import pytest
from django.utils.log import AdminEmailHandler, RequireDebugFalse, RequireDebugTrue

from jobqueue.base.compat import TaskResultStatus, signals, task_backends
from jobqueue.worker.run import task_signals
from tests.app import tasks
from tests.factories import claim_one, settle_run
from tests.marks import committed, finding

pytestmark = committed


def listened(level):
    return task_signals._listened(signals.task_started, signals.log_task_started, level)


def test_djangos_own_log_receiver_counts_only_if_its_line_would_be_written(caplog):
    caplog.set_level(logging.WARNING, signals.logger.name)
    assert not listened(logging.INFO)
    assert listened(logging.ERROR)
    caplog.set_level(logging.INFO, signals.logger.name)
    assert listened(logging.INFO)


@pytest.mark.parametrize(
    ("condition", "level", "debug", "heard"),
    [
        (None, logging.INFO, False, True),
        (None, logging.ERROR, False, False),
        (RequireDebugTrue(), logging.INFO, False, False),
        (RequireDebugTrue(), logging.INFO, True, True),
        (RequireDebugFalse(), logging.INFO, True, False),
        (logging.Filter("elsewhere"), logging.INFO, False, True),
    ],
)
def test_a_handler_counts_if_it_may_write_the_line(monkeypatch, settings, condition, level, debug, heard):
    settings.DEBUG = debug
    handler = logging.NullHandler()
    handler.setLevel(level)
    if condition is not None:
        handler.addFilter(condition)
    monkeypatch.setattr(signals.logger, "handlers", [handler])
    monkeypatch.setattr(signals.logger, "propagate", False)
    signals.logger.setLevel(logging.INFO)
    try:
        assert listened(logging.INFO) is heard
    finally:
        signals.logger.setLevel(logging.NOTSET)


@pytest.fixture
def received():
    """(event, sender, status, what is in sys.exc_info()) of every signal."""
    found = []

    def started(sender, task_result, **_):
        found.append(("started", sender, task_result, sys.exc_info()[1]))

    def finished(sender, task_result, **_):
        found.append(("finished", sender, task_result, sys.exc_info()[1]))

    signals.task_started.connect(started)
    signals.task_finished.connect(finished)
    yield found
    signals.task_started.disconnect(started)
    signals.task_finished.disconnect(finished)


def test_any_other_receiver_counts(received, caplog):
    caplog.set_level(logging.CRITICAL, signals.logger.name)
    assert listened(logging.INFO)


def test_they_carry_what_get_result_gives(received):
    found = tasks.greet.enqueue("ann", count=2)
    settle_run(claim_one("default", worker="w"))
    (first, sender, begun, none), (last, same, ended, nothing) = received
    assert (first, last, none, nothing) == ("started", "finished", None, None)
    assert sender is same is type(task_backends["default"])
    stored = tasks.greet.get_result(found.id)
    for name in ("id", "task", "args", "kwargs", "backend", "enqueued_at", "started_at", "worker_ids", "errors"):
        assert getattr(ended, name) == getattr(stored, name) == getattr(begun, name), name
    assert (begun.status, ended.status) == (TaskResultStatus.RUNNING, TaskResultStatus.SUCCESSFUL)
    assert ended.return_value == stored.return_value == "ann 2"
    assert abs((ended.finished_at - stored.finished_at).total_seconds()) < 5
    ended.refresh()
    assert ended.finished_at == stored.finished_at


def test_the_exception_is_live_with_its_own_traceback(received):
    tasks.counts.enqueue(1, "raises")
    settle_run(claim_one("default"))
    result, error = received[-1][2:]
    assert (type(error), result.status) == (ValueError, TaskResultStatus.FAILED)
    assert result.errors[0].exception_class is ValueError
    assert "in counts" in result.errors[0].traceback


def test_raw_rows_and_parked_tasks_send_nothing(received):
    from tests.factories import make_job

    make_job("webhooks", {"n": 1})
    settle_run(claim_one("webhooks"))
    make_job("q", {"args": []}, task="gone.away")
    settle_run(claim_one("q"))
    assert received == []


def test_what_finish_stored_is_the_return_value(received):
    tasks.counts.enqueue(1, "finishes")
    settle_run(claim_one("default"))
    assert received[-1][2].return_value == "kept"


@pytest.fixture
def mails(settings, mailoutbox, monkeypatch):
    """What Django's default handler of the logger "django" mails to ADMINS."""
    # A pair is deprecated from 6.0 on, and before it there is no other form.
    admin = "ops@example.com" if django.VERSION >= (6, 0) else ("ops", "ops@example.com")
    settings.ADMINS, settings.DEBUG = [admin], False
    handler = AdminEmailHandler()
    handler.setLevel(logging.ERROR)
    monkeypatch.setattr(signals.logger, "handlers", [handler])
    monkeypatch.setattr(signals.logger, "propagate", False)
    return mailoutbox


@finding("O-H1")
def test_a_mail_about_a_dead_job_has_its_error_without_the_secrets(mails):
    tasks.leaks.enqueue("password=hunter2secret")
    settle_run(claim_one("default"))
    (mail,) = mails
    assert "state=FAILED" in mail.subject
    assert "ValueError: connect failed password=********" in mail.body
    assert "hunter2secret" not in f"{mail.subject}{mail.body}{mail.alternatives}"


@finding("O-H1")
def test_a_discarded_job_makes_no_mail(mails):
    tasks.discards.enqueue("order 1 was deleted")
    settle_run(claim_one("default"))
    assert mails == []


@finding("O-H1")
def test_the_line_of_a_discarded_job_has_level_info(caplog, received):
    caplog.set_level(logging.INFO, signals.logger.name)
    tasks.discards.enqueue("order 1 was deleted")
    settle_run(claim_one("default"))
    (line,) = [record for record in caplog.records if "state=FAILED" in record.getMessage()]
    assert (line.levelno, line.exc_info, line.exc_text) == (logging.INFO, None, None)
    assert "order 1 was deleted" in line.getMessage()


def test_other_lines_of_djangos_logger_keep_their_errors(caplog):
    try:
        raise ValueError("elsewhere")
    except ValueError:
        signals.logger.exception("another backend")
    assert caplog.records[-1].exc_info is not None
