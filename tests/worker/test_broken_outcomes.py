"""An outcome whose write or announcement raises what nobody expects changes nothing for those beside it."""

from types import SimpleNamespace

import pytest

from jobqueue import signals, transitions
from jobqueue.signals import attempt_ended
from jobqueue.transitions import claim
from jobqueue.transitions.acking import encode_result
from jobqueue.worker.child import outcomes as writing
from jobqueue.worker.child.outcomes import settle
from jobqueue.worker.run.attempt import Ending, Outcome
from tests.factories import job, make_jobs, state
from tests.marks import committed

pytestmark = committed


@pytest.fixture
def leases():
    make_jobs(3)
    return sorted(claim("q", 3, worker="w"), key=lambda lease: lease.job_id)


@pytest.fixture
def told():
    """(outcome, job) as attempt_ended and lease_lost said."""
    said = []

    def ended(outcome, job_id, **_):
        said.append((str(outcome), job_id))

    def lost(job_id, **_):
        said.append(("lease_lost", job_id))

    attempt_ended.connect(ended)
    signals.lease_lost.connect(lost)
    yield said
    attempt_ended.disconnect(ended)
    signals.lease_lost.disconnect(lost)


def end(outcomes):
    counts = SimpleNamespace(finished=0, failed=0, lost=0, snoozed=0, discarded=0)
    assert settle(outcomes, counts) == []
    return {name: number for name, number in vars(counts).items() if number}


def test_an_outcome_that_cannot_be_written_at_all_is_given_up_alone(monkeypatch, caplog, leases):
    broken = leases[1]
    fail = transitions.fail

    def break_one(lease, **more):
        if lease == broken:
            raise RuntimeError("unexpected")
        return fail(lease, **more)

    monkeypatch.setattr(transitions, "fail", break_one)
    assert end([Outcome(lease, Ending.FAILED, 0.0, error=ValueError("x")) for lease in leases]) == {
        "finished": 2, "failed": 2,
    }  # fmt: skip
    assert [state(lease.job_id) for lease in leases] == ["READY", "PROCESSING", "READY"]
    assert f"job {broken.job_id}: giving up; its lease will expire and be reaped" in caplog.text


@pytest.mark.parametrize("ending", [Ending.OK, Ending.FAILED])
def test_an_end_that_cannot_be_announced_is_written_once(monkeypatch, caplog, told, leases, ending):
    broken, count_run = leases[1], writing.recorder.count_run

    def break_one(lease, seconds):
        if lease == broken:
            raise RuntimeError("unexpected")
        count_run(lease, seconds)

    monkeypatch.setattr(writing.recorder, "count_run", break_one)
    good = ending is Ending.OK
    error, result = (None, encode_result(1)) if good else (ValueError("x"), None)
    counts = end([Outcome(lease, ending, 0.0, error=error, result=result) for lease in leases])
    assert counts == ({"finished": 3} if good else {"finished": 3, "failed": 3})
    assert [state(lease.job_id) for lease in leases] == ["DONE" if good else "READY"] * 3
    assert [job(lease.job_id).attempts for lease in leases] == [0 if good else 1] * 3
    word = "ok" if good else "retry"
    assert told == [(word, leases[0].job_id), (word, leases[2].job_id)]
    assert f"job {broken.job_id} has ended, but that could not be announced" in caplog.text
