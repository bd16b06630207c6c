"""A row that is settled is found through its key and nothing else: an index on its state would lock its neighbours."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue import enqueue, task, transitions
from jobqueue.transitions import claim, fail
from jobqueue.transitions.failing import Also
from tests.factories import claim_one, expire, make_in_state, make_job, make_jobs, set_columns
from tests.marks import committed
from tests.settings import VENDOR

pytestmark = [
    committed,
    pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="only InnoDB locks what an UPDATE reads on its way"),
]


def two_leases():
    make_jobs(2)
    return claim("q", 2, worker="w")


def stale_key():
    from jobqueue.db.clock import UtcNowPlus

    job_id = enqueue("q", 1, dedupe_key="k")
    transitions.cancel(job_id)
    set_columns(job_id, finished_at=UtcNowPlus(-90_000))


@task(queue_name="q", dedupe_key="k", unique="waiting", on_conflict="replace")
def replaced(number):
    return number


def keyed_lease():
    enqueue("q", 1, dedupe_key="k")
    return claim_one()


def lapsed():
    leases = two_leases()
    expire(*leases)


VERBS = {
    "claim": (make_job, lambda _: claim("q", worker="w")),
    "ack": (two_leases, lambda leases: transitions.ack(leases[0])),
    "ack_many": (two_leases, transitions.ack_many),
    "fail": (two_leases, lambda leases: fail(leases[0], error="x")),
    "fail that moves a job with a dedupe key": (
        keyed_lease,
        lambda lease: fail(lease, error="x", also=Also(queue="other")),
    ),
    "snooze": (two_leases, lambda leases: transitions.snooze(leases[0], delay_seconds=5)),
    "release": (two_leases, lambda leases: transitions.release(leases[0])),
    "release_many": (two_leases, transitions.release_many),
    "heartbeat_many": (two_leases, lambda leases: transitions.heartbeat_many(leases, lease_seconds=60)),
    "reap": (lapsed, lambda _: transitions.reap()),
    "cancel": (make_job, transitions.cancel),
    "cancel_held": (lambda: make_job() and claim_one(), transitions.cancel_held),
    "retry": (lambda: make_in_state("FAILED"), transitions.retry),
    "enqueue that replaces a waiting job": (lambda: replaced.enqueue(1), lambda _: replaced.enqueue(2)),
    "enqueue with a key that has lapsed": (stale_key, lambda _: enqueue("q", 2, dedupe_key="k")),
}


@pytest.mark.parametrize("verb", VERBS)
def test_no_index_but_the_key_can_be_used_to_find_the_rows_that_are_written(verb):
    prepare, act = VERBS[verb]
    subject = prepare()
    with CaptureQueriesContext(
        connection,
    ) as captured:
        act(subject)
    updates = [query["sql"] for query in captured if query["sql"].startswith("UPDATE `job_queue`")]
    assert updates
    for sql in updates:
        assert possible_keys(sql) == "PRIMARY", sql


def possible_keys(sql):
    # Tokens are bytes, and the log of queries is text: any other token has the same plan.
    cleaned = sql.encode("ascii", "replace").decode()
    explain = "EXPLAIN FORMAT=TRADITIONAL" if VENDOR == "mysql" else "EXPLAIN"
    with connection.cursor() as cursor:
        cursor.execute(f"{explain} {cleaned}".replace("%", "%%"))
        names = [column[0] for column in cursor.description]
        return dict(zip(names, cursor.fetchone(), strict=True))["possible_keys"]
