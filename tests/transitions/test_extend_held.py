"""An operator lets the lease of a running job last longer."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.transitions import ack, cancel, claim, extend_held, heartbeat, reap
from tests.factories import claim_one, expire, job, make_in_state, make_job, row, seconds_from_now, state

pytestmark = pytest.mark.django_db


def left(job_id):
    """Seconds until the lease ends."""
    return seconds_from_now(job(job_id).lock_until)


def test_the_lease_lasts_at_least_so_long_from_now():
    job_id = make_job()
    lease = claim_one(lease_seconds=30)
    assert extend_held(job_id, 900) is True
    assert 890 < left(job_id) <= 900.01
    after = job(job_id)
    assert (bytes(after.lock_token), after.locked_by, after.fence) == (lease.token, lease.worker, lease.fence)
    assert after.attempts == 0


def test_a_longer_lease_is_not_made_shorter():
    job_id = make_job()
    claim_one(lease_seconds=3600)
    until = job(job_id).lock_until
    assert extend_held(job_id, 60) is True
    assert job(job_id).lock_until == until


def test_repeating_it_does_not_add_up():
    job_id = make_job()
    claim_one()
    for _ in range(3):
        assert extend_held(job_id, 900)
    assert left(job_id) <= 900.01


@pytest.mark.parametrize("name", ["READY", "DONE", "FAILED", "CANCELED"])
def test_a_job_that_does_not_run_is_left_alone(name):
    job_id = make_in_state(name)
    before = row(job_id)
    assert extend_held(job_id, 900) is False
    assert row(job_id) == before


def test_a_lease_that_has_run_out_stays_so_and_its_job_runs_again():
    job_id = make_job()
    expire(claim_one())
    before = row(job_id)
    assert extend_held(job_id, 900) is False
    assert row(job_id) == before
    assert reap().total == 1


def test_no_reaper_takes_the_job_from_a_holder_that_does_not_renew():
    job_id = make_job()
    lease = claim_one(lease_seconds=1)
    assert extend_held(job_id, 900)
    assert reap().total == 0
    assert claim("q", worker="other") == []
    ack(lease)
    assert state(job_id) == "DONE"


def test_a_holder_that_renews_sets_the_end_anew():
    job_id = make_job()
    lease = claim_one()
    assert extend_held(job_id, 3600)
    heartbeat(lease, lease_seconds=60)
    assert left(job_id) <= 60.01


def test_a_wish_to_cancel_stays():
    job_id = make_job()
    claim_one()
    cancel(job_id)
    assert extend_held(job_id, 900)
    assert job(job_id).cancel_requested_at is not None


def test_it_writes_the_end_and_the_time_of_the_write_only():
    job_id = make_job()
    claim_one()
    before = row(job_id)
    with CaptureQueriesContext(connection) as captured:
        extend_held(str(job_id), 900)
    assert len([one for one in captured if "job_queue" in one["sql"]]) == 1
    after = row(job_id)
    assert {name for name in after if after[name] != before[name]} <= {"lock_until", "updated_at"}


@pytest.mark.parametrize("job_id", [0, -1, 2**63 - 1, 2**63, 2**64, "99999999999999999999"])
def test_a_job_id_that_does_not_exist_is_false(job_id):
    assert extend_held(job_id, 60) is False


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), timedelta(days=400).total_seconds()])
def test_a_time_that_is_none_writes_nothing(seconds):
    job_id = make_in_state("PROCESSING")
    before = row(job_id)
    with pytest.raises(InvalidValue, match="seconds"):
        extend_held(job_id, seconds)
    assert row(job_id) == before


@pytest.mark.parametrize("arguments", [("x", 60), (1.5, 60), (None, 60), (1, "60"), (1, None), (1, True)])
def test_what_is_neither_an_id_nor_a_time_is_refused(arguments):
    with pytest.raises(InvalidType):
        extend_held(*arguments)
