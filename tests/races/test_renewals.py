"""Renewals by what the scoreboard says: one statement for all tokens of one length of lease."""

import time

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue import enqueue_many
from jobqueue.models import Job
from jobqueue.transitions import claim, release
from jobqueue.transitions.renewing import renew_in_hand
from jobqueue.worker.monitor.monitor import Monitor
from jobqueue.worker.shared.queue_choice import Selection
from jobqueue.worker.shared.scoreboard import Scoreboard
from jobqueue.worker.shared.worker_options import Options
from tests.factories import expire, job, make_jobs
from tests.marks import committed
from tests.races.actors import holding
from tests.settings import VENDOR

pytestmark = committed


def claimed(count, *, seconds=60):
    """Leases of as many claims, each with a token of its own."""
    make_jobs(count)
    return [lease for _ in range(count) for lease in claim("q", 1, worker="w", lease_seconds=seconds)]


def keys(leases):
    return [(lease.job_id, lease.token) for lease in leases]


def seconds_left(lease):
    found = job(lease.job_id)
    return (found.lock_until - found.updated_at).total_seconds()


def test_leases_of_many_claims_are_renewed_by_one_statement(monkeypatch):
    leases = claimed(6)
    scoreboard = Scoreboard(1, 6)
    for lease, slot in zip(leases, scoreboard.lease_slots[0], strict=True):
        slot.fill(lease.job_id, lease.fence, lease.token, lease_seconds=600.0, lease_until=1.0)
    monitor = Monitor(Options(Selection(), "default"), scoreboard)
    monkeypatch.setattr(monitor, "_living", lambda: [(0, "w")])
    with CaptureQueriesContext(
        connection,
    ) as queries:
        monitor.renew()
    about_jobs = [query["sql"] for query in queries if "job_queue" in query["sql"]]
    assert len(about_jobs) == 1, about_jobs
    assert {round(seconds_left(lease)) for lease in leases} == {600}
    assert min(slot.lease_until for slot in scoreboard.lease_slots[0]) > 1.0


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite locks the whole database, not a row")
@pytest.mark.parametrize("others", [0, 3000], ids=["small", "large"])
def test_a_locked_row_delays_no_other_renewal(others):
    """The optimizer reads a small table otherwise than a large one."""
    # First the others: on a busy machine they may take longer than the leases.
    enqueue_many("other", [None] * others)
    leases = claimed(3)
    before = job(leases[1].job_id).lock_until
    with holding(lambda: list(Job.objects.filter(pk=leases[1].job_id).select_for_update())):
        begun = time.monotonic()
        left = renew_in_hand(keys(leases), lease_seconds=600, using="default")
        passed = time.monotonic() - begun
    assert left[keys(leases)[1]] <= 60
    assert min(left[keys(leases)[0]], left[keys(leases)[2]]) + passed > 599.9
    assert job(leases[1].job_id).lock_until == before
    assert round(seconds_left(leases[0])) == 600


def test_of_what_was_released_lost_or_has_run_out_nothing_is_renewed():
    kept, released, late, reclaimed = claimed(4)
    release(released)
    expire(late)
    release(reclaimed)
    others = {lease.job_id: lease for lease in claim("q", 2, worker="b", lease_seconds=60)}
    left = renew_in_hand(keys([kept, released, late, reclaimed]), lease_seconds=600, using="default")
    assert set(left) == set(keys([kept]))
    assert left[keys([kept])[0]] > 590
    assert {round(seconds_left(lease)) for lease in others.values()} == {60}


def test_a_lease_of_another_claim_is_not_renewed_by_a_token_that_this_child_holds_for_another_job():
    first, second = claimed(2)
    assert renew_in_hand([(first.job_id, second.token)], lease_seconds=600, using="default") == {}
    assert round(seconds_left(first)) == 60


def test_the_longer_lease_of_a_task_holds():
    (lease,) = claimed(1)
    Job.objects.filter(pk=lease.job_id).update(lease_seconds=3600)
    assert renew_in_hand(keys([lease]), lease_seconds=60, using="default") == {keys([lease])[0]: 60}
    assert round(seconds_left(lease)) == 3600
