"""The statements of reference/sql.md carry a job through its life, next to our own workers."""

import re
from uuid import uuid4

import pytest
from django.db import Error

from jobqueue.models import Job
from jobqueue.transitions import claim, reap
from tests.docs import scratch
from tests.docs.markdown import ROOT, pieces
from tests.settings import VENDOR

PAGE = ROOT / "docs" / "reference" / "sql.md"
NAMES = ["enqueue", "claim", "heartbeat", "ack", "fail"]


def blocks():
    only = None
    for piece in pieces(PAGE):
        if piece.kind == "test":
            only = piece.text.split()
        elif piece.kind == "sql":
            yield only, piece.text
            only = None


def named(text):
    """The statements of a block by the comment above each."""
    parts = re.split(r"^-- (\w+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture
def foreign(tables):
    """A program that has read the page: do("claim") runs the statement for this database."""
    (text,) = [text for only, text in blocks() if VENDOR in only]
    statements = named(text)

    class Foreign:
        values = {
            "queue": "mail", "priority": 5, "payload": '{"to": "ada"}', "key": b"ada-1", "worker": "perl:7",
            "token": uuid4().bytes, "result": '{"sent": true}', "error": "no route",
        }  # fmt: skip

        def do(self, name):
            rows = scratch.sql(statements[name], self.values)
            return rows if name == "claim" else self.values["changed"]

        @property
        def job(self):
            return Job.objects.get()

    return Foreign()


def test_each_database_has_the_five_statements():
    databases = []
    for only, text in blocks():
        databases += only
        assert list(named(text)) == NAMES
    assert sorted(databases) == ["mariadb", "mysql", "postgres", "sqlite"]


def test_a_job_is_enqueued_claimed_renewed_and_acked(foreign):
    assert foreign.do("enqueue") == 1
    foreign.do("claim")
    job = foreign.job
    assert (job.status, job.locked_by, job.fence, job.lock_token) == (1, "perl:7", 1, foreign.values["token"])
    assert 59 < (job.lock_until - job.locked_at).total_seconds() < 61
    assert claim("mail", worker="ours") == []
    assert foreign.do("heartbeat") == 1
    assert reap().total == 0
    assert foreign.do("ack") == 1
    job = foreign.job
    assert (job.status, job.result, job.lock_token) == (2, {"sent": True}, None)
    assert job.finished_at is not None


def test_the_claim_takes_the_highest_due_priority(foreign):
    for priority in (5, 9, 7):
        foreign.values |= {"priority": priority, "key": None}
        foreign.do("enqueue")
    Job.objects.filter(priority=9).update(run_at="2100-01-01T00:00Z")
    foreign.do("claim")
    assert Job.objects.get(status=1).priority == 7


def test_a_job_that_fails_is_tried_again_until_its_attempts_are_used_up(foreign):
    foreign.do("enqueue")
    Job.objects.update(max_attempts=2)
    foreign.do("claim")
    assert foreign.do("fail") == 1
    job = foreign.job
    assert (job.status, job.attempts, job.lock_token, job.finished_at) == (0, 1, None, None)
    assert 4.5 < (job.run_at - job.updated_at).total_seconds() < 5.5
    Job.objects.update(run_at=job.created_at)
    foreign.do("claim")
    foreign.do("fail")
    assert (foreign.job.status, foreign.job.attempts, foreign.job.fence) == (3, 2, 2)
    assert foreign.job.finished_at is not None


@pytest.mark.parametrize("name", ["heartbeat", "ack", "fail"])
def test_a_lease_that_was_reaped_changes_nothing(foreign, name):
    foreign.do("enqueue")
    foreign.do("claim")
    Job.objects.update(lock_until="2020-01-01T00:00Z")
    assert reap().requeued == 1
    assert foreign.do(name) == 0


def test_a_key_that_is_taken_is_refused(foreign):
    foreign.do("enqueue")
    with pytest.raises(Error):
        foreign.do("enqueue")
