"""What an attempt has logged is kept with its history when it fails."""

import logging
import threading

import pytest

from jobqueue.context import job_context
from jobqueue.context.job_context import LOG_BYTES, JobLog
from jobqueue.models import JobAttempt
from tests.app import tasks
from tests.factories import claim_one, settle_run
from tests.marks import committed

pytestmark = committed


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    make = logging.getLogRecordFactory()
    monkeypatch.setattr(job_context, "_keeps_lines", False)
    job_context.keep_log_lines()
    yield
    logging.setLogRecordFactory(make)


def attempt_of(task, *arguments):
    """The history row of a job that was run."""
    task.enqueue(*arguments)
    settle_run(claim_one("default"))
    return JobAttempt.objects.last()


def test_a_failed_attempt_has_its_lines():
    logging.getLogger("tests.app").warning("before any job")
    lines = attempt_of(tasks.counts, 2, "raises").log.splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["WARNING tests.app: step 1", "WARNING tests.app: step 2"]


def test_a_successful_one_leaves_nothing():
    assert attempt_of(tasks.counts, 2) is None


def test_one_that_logged_nothing_has_none():
    assert attempt_of(tasks.unprintable).log is None


def test_the_newest_lines_are_kept():
    lines = attempt_of(tasks.counts, 250, "raises").log.splitlines()
    assert lines[0] == "... 150 earlier lines left out ..."
    assert (len(lines), lines[-1].partition(" ")[2]) == (101, "WARNING tests.app: step 250")


@pytest.mark.parametrize(("lines", "kept"), [(0, None), (1, 2)])
def test_the_setting_says_how_many(settings, lines, kept):
    settings.JOBQUEUE = {"LOG_LINES": lines}
    log = attempt_of(tasks.counts, 5, "raises").log
    assert (log and len(log.splitlines())) == kept


def test_long_lines_hostile_ones_and_tracebacks_fit():
    log = JobLog(10_000)
    for number in range(1000):
        log.add(logging.LogRecord("a", 30, "", 0, f"{number} \x00\ud800" + "x" * 5000, (), None))
    assert len(log.text().encode()) < LOG_BYTES + 100
    assert "999 \\x00" in log.text()
    try:
        raise ValueError("no")
    except ValueError as error:
        log.add(logging.LogRecord("a", 40, "", 0, "failed", (), (type(error), error, error.__traceback__)))
    assert log.text().endswith("ValueError: no")


def test_arguments_that_do_not_fit_their_text_cost_nothing(monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    monkeypatch.setattr(tasks, "note", lambda *_: tasks.logger.warning("%d", "x"))
    assert attempt_of(tasks.boom).log == ""


def test_a_thread_that_the_job_did_not_hand_its_context_is_nobodys(monkeypatch):
    def elsewhere():
        tasks.logger.warning("from elsewhere")

    thread = threading.Thread(target=elsewhere)
    monkeypatch.setattr(tasks, "note", lambda *_: (thread.start(), thread.join()))
    assert attempt_of(tasks.boom).log is None
