"""A worker measures the writes of its heartbeats, and writes into its row that commits take long."""

import logging
import time

import pytest
from django.db import connections

from jobqueue.maintenance import worker_rows
from jobqueue.models import Worker
from jobqueue.worker.monitor.troubles import COMMIT_SECONDS, IN_A_ROW, Troubles

pytestmark = pytest.mark.django_db
SLOW, FAST = 2 * COMMIT_SECONDS, 0.01


@pytest.fixture
def heartbeats(monkeypatch):
    """heartbeats(seconds, ...): writes that took so long; what the row of the worker says of commits then."""
    monkeypatch.setattr("jobqueue.worker.monitor.troubles.short_of", lambda pid, before: {})
    worker_rows.register("w", supervisor_pid=1, boot_id="b", queues="*", concurrency=4, using="default")
    troubles = Troubles("default")

    def beat(*seconds):
        for one in seconds:
            troubles.note_commit(one)
            troubles.report([("w", 1)])
        return Worker.objects.get().troubles

    return beat


def test_slow_commits_are_written_while_they_are_slow(heartbeats, caplog):
    caplog.set_level(logging.WARNING, "jobqueue.worker")
    assert heartbeats(*[SLOW] * (IN_A_ROW - 1)) is None
    assert heartbeats(SLOW + 1) == {"commit": {"ms": 1000 * SLOW}}
    heartbeats(SLOW)
    assert [record.message for record in caplog.records] == [
        "the database takes 1000 ms to write and commit one heartbeat"
    ]
    assert heartbeats(FAST) is None


def test_a_slow_commit_now_and_then_is_no_trouble(heartbeats):
    assert heartbeats(*[SLOW, SLOW, FAST] * 4) is None


def test_the_write_of_a_heartbeat_is_measured(db):
    worker_rows.register("w", supervisor_pid=1, boot_id="b", queues="*", concurrency=4, using="default")

    def late(execute, sql, params, many, context):
        if sql.startswith("UPDATE"):
            time.sleep(0.05)
        return execute(sql, params, many, context)

    with connections["default"].execute_wrapper(late):
        assert worker_rows.renew(["w"], using="default").seconds >= 0.05
