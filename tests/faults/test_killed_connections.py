"""The server ends the session at every statement of every verb in turn: the verb is redone, nothing is lost."""

from __future__ import annotations

import pytest
from django.db import Error, connection, transaction

from jobqueue import enqueue, flow, group, groups, transitions
from jobqueue.db import retry
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import OutcomeUnknown
from jobqueue.models import Job, JobAttempt
from jobqueue.transitions import claim, fail, reap
from tests.app import tasks
from tests.factories import claim_one, expire, make_in_state, make_job, set_columns, state
from tests.faults.conftest import kill, killed_at, session_id
from tests.marks import committed, finding
from tests.settings import VENDOR

pytestmark = [
    committed,
    pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no sessions that somebody could end"),
]


def ready():
    return make_job()


def leased():
    make_job()
    return claim_one()


def lapsed():
    lease = leased()
    expire(lease)
    return lease


def late():
    job_id = make_job()
    set_columns(job_id, expires_at=UtcNowPlus(-1))
    return job_id


VERBS = {
    "claim": (ready, lambda job_id: claim("q", worker="w"), "PROCESSING"),
    "claim that meets an expired job": (late, lambda job_id: claim("q", worker="w"), "CANCELED"),
    "ack": (leased, lambda lease: transitions.ack(lease, result={"a": 1}), "DONE"),
    "ack_many": (leased, lambda lease: transitions.ack_many([lease], results=[{"a": 1}]), "DONE"),
    "fail": (leased, lambda lease: fail(lease, error=ValueError("x")), "READY"),
    "snooze": (leased, lambda lease: transitions.snooze(lease, delay_seconds=5), "READY"),
    "release": (leased, transitions.release, "READY"),
    "release_many": (leased, lambda lease: transitions.release_many([lease]), "READY"),
    "heartbeat": (leased, lambda lease: transitions.heartbeat(lease, lease_seconds=60), "PROCESSING"),
    "heartbeat_many": (leased, lambda lease: transitions.heartbeat_many([lease], lease_seconds=60), "PROCESSING"),
    "reap": (lapsed, lambda lease: reap(), "READY"),
    "cancel": (ready, transitions.cancel, "CANCELED"),
    "retry": (lambda: make_in_state("FAILED"), transitions.retry, "READY"),
    "edit": (ready, lambda job_id: transitions.edit(job_id, queue="slow"), "READY"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_whose_session_is_killed_at_any_of_its_statements_is_redone_whole(verb):
    prepare, act, wanted = VERBS[verb]
    number, walked = 1, 0
    while True:
        Job.objects.all().delete()
        JobAttempt.objects.all().delete()
        subject = prepare()
        job_id = getattr(subject, "job_id", subject)
        before = sum(retry.retries.values())
        with killed_at(number) as seen:
            result = act(subject)
        if not seen["killed"]:
            break
        walked += 1
        assert state(job_id) == wanted, f"killed at statement {number}"
        assert sum(retry.retries.values()) == before + 1, "the fault is counted"
        if verb in ("ack_many", "release_many", "heartbeat_many"):
            assert result == []
        if verb == "fail":
            assert JobAttempt.objects.filter(job_id=job_id).count() == 1
        number += 1
    assert walked >= 1
    assert state(job_id) == wanted


def test_a_verb_whose_commit_answer_was_lost_knows_its_own_work(answer_lost):
    make_job()
    lease = claim_one()
    used = answer_lost()
    assert fail(lease, error="boom") == Job.Status.READY
    assert used
    job = Job.objects.get(pk=lease.job_id)
    assert job.attempts == 1
    assert JobAttempt.objects.filter(job_id=job.pk).count() == 1


def test_a_claim_whose_commit_answer_was_lost_leaves_a_lease_that_is_reaped(answer_lost):
    make_job("other")
    assert claim("other", worker="w"), "the statements are prepared, in transactions of their own"
    job_id = make_job()
    used = answer_lost()
    assert claim("q", worker="w") == []
    assert used
    assert state(job_id) == "PROCESSING"
    expire(job_id)
    assert reap().requeued == 1


def test_a_claim_over_two_levels_returns_all_it_leased_wherever_its_session_is_killed():
    """Where a claim is one statement per level, the first level is committed before the second one is asked."""
    number, ended = 1, False
    while not ended:
        Job.objects.all().delete()
        high, low = make_job(priority=5), make_job(priority=1)
        before = sum(retry.retries.values())
        with killed_at(number) as seen:
            leases = claim("q", 2, worker="w")
        ended = not seen["killed"]
        assert sum(retry.retries.values()) == before + (not ended), "the fault is counted"
        assert [lease.job_id for lease in leases] in ([high], [high, low])
        assert {lease.job_id for lease in leases} == set(Job.objects.filter(status=1).values_list("pk", flat=True))
        number += 1
    assert len(leases) == 2
    assert number > 4


def test_an_enqueue_on_a_session_that_was_killed_while_idle_just_works():
    kill(session_id())
    job_id = enqueue("q", 1)
    assert state(job_id) == "READY"
    assert Job.objects.count() == 1


def ended_job():
    result = tasks.add.enqueue(1, 2)
    (lease,) = claim("default", worker="w")
    fail(lease, error="boom", retry=False)
    return result


def a_group():
    with group("all") as members:
        members.add(tasks.add, 1, 2)
    return members.id


#: what it needs, and the read
READS = {
    "get_result": (ended_job, lambda result: tasks.add.get_result(result.id).status),
    "refresh": (ended_job, lambda result: result.refresh()),
    "wait": (ended_job, lambda result: result.wait(timeout_seconds=5).status),
    "groups.get": (a_group, lambda number: groups.get(number).total),
    "groups.known": (a_group, lambda number: [one.total for one in groups.known()]),
    "flow.paused": (lambda: flow.pause("q", reason="r"), lambda _: [one.queue for one in flow.paused()]),
}


@finding("R-F7")
@pytest.mark.parametrize("name", READS)
def test_a_read_on_a_session_that_was_ended_while_idle_or_in_between_just_works(name):
    prepare, read = READS[name]
    subject = prepare()
    wanted, number = read(subject), 1
    kill(session_id())
    assert read(subject) == wanted
    while True:
        with killed_at(number) as seen:
            assert read(subject) == wanted
        if not seen["killed"]:
            break
        number += 1
    assert number > 1


def test_a_read_in_a_transaction_whose_session_was_ended_is_for_the_caller_to_repeat():
    result = ended_job()

    def read():
        with transaction.atomic():
            kill(session_id())
            tasks.add.get_result(result.id)

    with pytest.raises(Error):
        read()
    assert tasks.add.get_result(result.id).status == "FAILED"


def test_so_does_one_that_reads_the_time_for_its_expiry_before():
    kill(session_id())
    result = tasks.add.using(expires=60).enqueue(1, 2)
    assert state(int(result.id)) == "READY"
    assert Job.objects.get().expires_at is not None


def test_a_keyed_enqueue_whose_session_is_killed_adds_exactly_one_job():
    for number in (1, 2, 3, 4, 5):
        Job.objects.all().delete()
        with killed_at(number):
            job_id = enqueue("q", 1, dedupe_key="k")
        assert list(Job.objects.values_list("pk", flat=True)) == [job_id]
        connection.close()


def test_a_task_whose_session_is_killed_at_any_statement_of_its_enqueue_is_never_added_twice():
    number = 1
    while True:
        Job.objects.all().delete()
        try:
            with killed_at(number) as seen:
                result = tasks.add.enqueue(1, 2)
        except OutcomeUnknown:
            assert Job.objects.count() <= 1
        else:
            assert list(Job.objects.values_list("pk", flat=True)) == [int(result.id)]
        if not seen["killed"]:
            return
        number += 1
