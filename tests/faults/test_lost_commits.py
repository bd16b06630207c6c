"""A commit whose answer is lost: the verb finds out that it was done, says so, and lets the ordering key go on."""

from __future__ import annotations

import pytest

from jobqueue import enqueue
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import LeaseLost
from jobqueue.models import Job, JobAttempt, LaneEntry
from jobqueue.signals import job_canceled, job_reaped, lease_lost
from jobqueue.transitions import (
    cancel,
    cancel_held,
    claim,
    discard,
    edit,
    extend_held,
    fail,
    reap,
    release,
    release_held,
    release_many,
    resume,
    retry,
    snooze,
)
from tests.factories import claim_one, expire, job, make_in_state, make_job, set_columns, state
from tests.faults.conftest import killed_at
from tests.marks import committed, finding, on_a_wire

pytestmark = [committed, on_a_wire]


@pytest.fixture
def heard():
    """What was said: (signal, job id)."""
    said = []
    receivers = {
        name: lambda name=name, **facts: said.append((name, facts["job_id"]))
        for name in ("job_canceled", "lease_lost", "job_reaped")
    }
    signals = {"job_canceled": job_canceled, "lease_lost": lease_lost, "job_reaped": job_reaped}
    for name, receiver in receivers.items():
        signals[name].connect(receiver)
    yield said
    for name, receiver in receivers.items():
        signals[name].disconnect(receiver)


def leased(**columns):
    job_id = make_job(**columns)
    lease = claim_one()
    assert lease.job_id == job_id
    return lease


def delayed():
    return make_job(run_at=UtcNowPlus(3600))


OPERATORS = {
    "cancel of a waiting job": (make_job, cancel, "CANCELED"),
    "cancel of a running job": (lambda: make_in_state("PROCESSING"), cancel, "PROCESSING"),
    "discard of a waiting job": (make_job, discard, "CANCELED"),
    "discard of a dead job": (lambda: make_in_state("FAILED"), discard, "CANCELED"),
    "retry of a dead job": (lambda: make_in_state("FAILED"), retry, "READY"),
    "retry of a delayed job": (delayed, retry, "READY"),
    "edit": (make_job, lambda job_id: edit(job_id, queue="slow", priority=5, tags=["a"]), "READY"),
    "release_held": (lambda: make_in_state("PROCESSING"), release_held, "READY"),
    "a longer lease": (lambda: make_in_state("PROCESSING"), lambda job_id: extend_held(job_id, 600), "PROCESSING"),
}

HARMLESS = {"cancel of a running job", "edit", "a longer lease"}


@pytest.mark.parametrize(
    "case",
    # A second one does no harm, and no caller got a wrong answer.
    [pytest.param(case, marks=[] if case in HARMLESS else [finding("A14")]) for case in OPERATORS],
)
def test_an_operators_verb_whose_commit_answer_was_lost_says_that_it_was_done(case, answer_lost, heard):
    prepare, act, wanted = OPERATORS[case]
    job_id = prepare()
    epoch = job(job_id).epoch
    used = answer_lost()
    assert act(job_id) is True
    assert used
    assert state(job_id) == wanted
    assert job(job_id).epoch == epoch + (case == "retry of a dead job"), "it was done once"
    assert heard == ([("job_canceled", job_id)] if wanted == "CANCELED" else [])


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[finding("A14")] if case == "release_held" else []) for case in OPERATORS]
)
def test_an_operators_verb_that_was_not_committed_is_done_by_its_second_try(case, heard):
    prepare, act, wanted = OPERATORS[case]
    number = 1
    while True:
        job_id = prepare()
        with killed_at(number) as seen:
            assert act(job_id) is True
        assert state(job_id) == wanted, f"killed at statement {number}"
        if not seen["killed"]:
            break
        Job.objects.all().delete()
        number += 1
    assert number > 1


HOLDERS = {
    "snooze": (lambda lease: snooze(lease, delay_seconds=5), "READY"),
    "release": (release, "READY"),
    "cancel_held": (cancel_held, "CANCELED"),
}


@finding("A14")
@pytest.mark.parametrize("verb", HOLDERS)
def test_a_holders_verb_whose_commit_answer_was_lost_knows_its_own_work(verb, answer_lost, heard):
    act, wanted = HOLDERS[verb]
    lease = leased()
    used = answer_lost()
    act(lease)
    assert used
    assert state(lease.job_id) == wanted
    assert ("lease_lost", lease.job_id) not in heard


@finding("A14")
def test_leases_given_back_together_by_a_commit_whose_answer_was_lost_are_not_called_lost(answer_lost, heard):
    make_job()
    make_job()
    leases = claim("q", 2, worker="w")
    used = answer_lost()
    assert release_many(leases) == []
    assert used
    assert {state(lease.job_id) for lease in leases} == {"READY"}
    assert heard == []


@pytest.mark.parametrize("verb", HOLDERS)
def test_a_lease_that_was_reaped_is_lost_whatever_happens_to_the_connection(verb):
    lease = leased()
    expire(lease)
    reap()
    with killed_at(1) as seen, pytest.raises(LeaseLost):
        HOLDERS[verb][0](lease)
    assert seen["killed"]


@finding("A14")
def test_a_failure_that_the_reaper_has_charged_is_lost_whatever_happens_to_the_connection():
    lease = leased()
    expire(lease)
    reap()
    with killed_at(1) as seen, pytest.raises(LeaseLost):
        fail(lease, error="boom")
    assert seen["killed"]
    assert JobAttempt.objects.filter(job_id=lease.job_id).count() == 1


def lane(count=2):
    return [enqueue("q", n, ordering_key="k") for n in range(count)]


@finding("A14")
@pytest.mark.parametrize("act", [cancel, discard])
def test_a_key_goes_on_after_a_commit_whose_answer_was_lost(act, answer_lost):
    first, second = lane()
    used = answer_lost()
    assert act(first)
    assert used
    assert claim_one().job_id == second


@finding("A14")
def test_a_key_goes_on_after_a_resume_whose_commit_answer_was_lost(answer_lost):
    first, second = lane()
    set_columns(first, max_attempts=1)
    fail(claim_one(), error="boom")
    used = answer_lost()
    assert resume("q", "k") is True
    assert used
    assert claim_one().job_id == second
    assert LaneEntry.objects.count() == 1


@finding("A14")
def test_a_key_goes_on_after_a_reap_whose_commit_answer_was_lost(answer_lost, heard):
    first, second = lane()
    set_columns(first, max_attempts=1)
    lease = claim_one()
    expire(lease)
    used = answer_lost()
    found = reap()
    assert used
    assert (found.dead, found.total) == (1, 1)
    assert heard == [("job_reaped", first)]
    assert state(second) == "READY"
