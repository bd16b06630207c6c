"""The table is an interface: any program may enqueue, claim, heartbeat, ack and fail with plain SQL."""

from uuid import UUID, uuid4

import pytest
from django.db import Error, IntegrityError, transaction

from jobqueue import enqueue
from jobqueue.exceptions import LeaseLost
from jobqueue.models import Job, JobAttempt
from jobqueue.transitions import ack, cancel, claim, fail, heartbeat, held_by, reap, release_held
from jobqueue.worker.run.attempt import Ending
from tests.factories import (
    claim_one,
    expire,
    job,
    lease_with,
    make_job,
    make_jobs,
    row,
    run_lease,
    seconds_from_now,
    state,
)
from tests.marks import committed, finding
from tests.settings import VENDOR

pytestmark = pytest.mark.django_db

NOW = {
    "mysql": "UTC_TIMESTAMP(6)",
    "mariadb": "UTC_TIMESTAMP(6)",
    "postgres": "statement_timestamp()",
    "sqlite": "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now') || '000'",
}[VENDOR]
LATER = {
    "mysql": "UTC_TIMESTAMP(6) + INTERVAL 60 SECOND",
    "mariadb": "UTC_TIMESTAMP(6) + INTERVAL 60 SECOND",
    "postgres": "statement_timestamp() + interval '60 seconds'",
    "sqlite": "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', '60 seconds') || '000'",
}[VENDOR]
PAST = LATER.replace("60", "-60")
OWNED = "WHERE id = %s AND status = 1 AND lock_token = %s"
CLEAR = "locked_by = NULL, lock_token = NULL, locked_at = NULL, lock_until = NULL"
INSERT = (
    "INSERT INTO job_queue (queue, status, priority, run_at, payload, dedupe_key) "
    f"VALUES (%s, 0, %s, {NOW}, %s, %s)"
)  # fmt: skip


class Foreign:
    """A program in another language: it knows the contract's columns and nothing of ours."""

    def __init__(self, sql):
        self.sql = sql
        self.token = uuid4().bytes

    def enqueue(self, queue="q", priority=0, payload='{"n": 1}', key=None):
        assert self.sql(INSERT, [queue, priority, payload, key]) == 1
        return self.sql("SELECT MAX(id) FROM job_queue")[0][0]

    def claim(self, job_id):
        return self.sql(
            f"UPDATE job_queue SET status = 1, locked_by = 'perl:7', lock_token = %s, locked_at = {NOW}, "
            f"lock_until = {LATER}, fence = fence + 1, updated_at = {NOW} "
            f"WHERE id = %s AND status = 0 AND run_at <= {NOW}",
            [self.token, job_id],
        )

    def heartbeat(self, job_id):
        return self.sql(
            f"UPDATE job_queue SET lock_until = {LATER}, updated_at = {NOW} {OWNED} AND lock_until > {NOW}",
            [job_id, self.token],
        )

    def ack(self, job_id):
        return self.sql(
            f"UPDATE job_queue SET status = 2, finished_at = {NOW}, updated_at = {NOW}, {CLEAR} {OWNED}",
            [job_id, self.token],
        )

    def fail(self, job_id):
        return self.sql(
            "UPDATE job_queue SET status = CASE WHEN attempts + 1 >= max_attempts THEN 3 ELSE 0 END, "
            f"attempts = attempts + 1, last_error = 'no', run_at = {NOW}, updated_at = {NOW}, {CLEAR} {OWNED}",
            [job_id, self.token],
        )


@pytest.fixture
def foreign(sql):
    """The other program."""
    return Foreign(sql)


def test_a_row_of_six_columns_is_a_whole_job(foreign):
    job_id = foreign.enqueue("q", 5, '{"a": [1, "é"]}', b"key")
    made = job(job_id)
    assert (made.status, made.priority, made.payload, bytes(made.dedupe_key)) == (
        Job.Status.READY,
        5,
        {"a": [1, "é"]},
        b"key",
    )
    assert (made.attempts, made.max_attempts, made.fence, made.gate, made.task) == (0, 25, 0, 0, None)
    assert -60 < seconds_from_now(made.created_at) <= 0.002
    assert -60 < seconds_from_now(made.updated_at) <= 0.002


def test_queue_and_payload_alone_are_enough(sql):
    sql("INSERT INTO job_queue (queue, payload) VALUES ('q', '[1]')")
    assert claim_one().payload == [1]


@committed
def test_a_plain_row_is_run_by_its_handler(foreign, evidence):
    job_id = foreign.enqueue("webhooks", payload='{"n": 7}')
    outcome = run_lease(claim_one("webhooks"))
    assert (outcome.ending, outcome.result, outcome.error) == (Ending.OK, '{"seen":7}', None)
    assert evidence.read("effect")[0][2:] == [str(job_id), "1", "1", "7"]
    ack(outcome.lease, result=outcome.result)
    assert job(job_id).result == {"seen": 7}


@committed
def test_a_plain_row_can_name_a_task(sql, evidence):
    sql(
        "INSERT INTO job_queue (queue, payload, task) VALUES ('q', %s, 'tests.app.tasks.add')",
        ['{"args": [2], "kwargs": {"b": 3}}'],
    )
    outcome = run_lease(claim_one())
    assert (outcome.ending, outcome.result) == (Ending.OK, "5")


def test_both_share_the_dedupe_keys(foreign):
    job_id = foreign.enqueue(key=b"k")
    assert enqueue("q", 1, dedupe_key="k") == job_id
    with pytest.raises(Error), transaction.atomic():
        foreign.enqueue(key=b"k")


def test_its_lease_keeps_our_claim_away(foreign):
    job_id = make_job()
    assert foreign.claim(job_id) == 1
    assert claim("q", worker="w") == []
    assert foreign.heartbeat(job_id) == 1
    assert reap().total == 0
    assert foreign.ack(job_id) == 1
    assert state(job_id) == "DONE"


def test_our_lease_keeps_its_claim_away(foreign):
    job_id = make_job()
    lease = claim_one()
    assert foreign.claim(job_id) == 0
    assert foreign.ack(job_id) == foreign.heartbeat(job_id) == foreign.fail(job_id) == 0
    ack(lease)


def test_our_reaper_takes_its_lapsed_lease(foreign, sql):
    job_id = make_job()
    foreign.claim(job_id)
    sql(f"UPDATE job_queue SET lock_until = {PAST} WHERE id = %s", [job_id])
    assert reap().requeued == 1
    assert (job(job_id).attempts, job(job_id).fence) == (1, 1)
    assert foreign.ack(job_id) == 0
    assert claim_one().fence == 2


def test_a_foreign_claim_that_leaves_locked_at_out_is_refused(sql):
    job_id = make_job()
    claim = f"UPDATE job_queue SET status = 1, locked_by = 'x', lock_token = %s, lock_until = {PAST} WHERE id = %s"
    with pytest.raises(IntegrityError), transaction.atomic():
        sql(claim, [b"t" * 16, job_id])
    assert state(job_id) == "READY"


def test_our_verbs_are_refused_after_its_claim(foreign):
    job_id = make_job()
    lease = claim_one()
    reap_now(job_id)
    assert foreign.claim(job_id) == 1
    before = row(job_id)
    for verb in (lambda: ack(lease), lambda: fail(lease, error="x"), lambda: heartbeat(lease, lease_seconds=60)):
        with pytest.raises(LeaseLost):
            verb()
    assert row(job_id) == before


def reap_now(job_id):
    expire(job_id)
    assert reap().requeued == 1


def test_its_failures_count_with_ours(foreign):
    job_id = make_job(max_attempts=3)
    foreign.claim(job_id)
    assert foreign.fail(job_id) == 1
    fail(claim_one(), error="ours", delay_seconds=0)
    foreign.claim(job_id)
    assert foreign.fail(job_id) == 1
    assert (job(job_id).attempts, job(job_id).fence) == (3, 3)
    assert state(job_id) == "FAILED"


def test_a_lease_without_an_end_is_refused_by_the_table(sql):
    job_id = make_job()
    with pytest.raises(Error), transaction.atomic():
        sql(
            "UPDATE job_queue SET status = 1, locked_by = 'x', lock_token = %s, lock_until = NULL WHERE id = %s",
            [b"t" * 16, job_id],
        )


@pytest.mark.parametrize("status", [5, -1, 100])
def test_a_sixth_state_is_refused_by_the_table(sql, status):
    job_id = make_job()
    with pytest.raises(Error), transaction.atomic():
        sql("UPDATE job_queue SET status = %s WHERE id = %s", [status, job_id])


@pytest.mark.parametrize("payload", ["nope", "{", "NaN"])
def test_text_that_is_not_json_is_refused_by_the_table(foreign, payload):
    with pytest.raises(Error), transaction.atomic():
        foreign.enqueue(payload=payload)


def test_our_token_is_what_uuid_to_bin_gives(sql, vendor_name):
    if vendor_name != "mysql":
        pytest.skip("UUID_TO_BIN exists on MySQL only")
    make_job()
    lease = claim_one()
    text = str(UUID(bytes=lease.token))
    assert sql("SELECT COUNT(*) FROM job_queue WHERE lock_token = UUID_TO_BIN(%s)", [text])[0][0] == 1


@committed
def test_a_malformed_task_payload_fails_its_job_alone(sql, evidence):
    for payload in ("5", "[]", '{"args": 1}', '{"args": [], "kwargs": []}', '{"x": 1}', "null"):
        sql("INSERT INTO job_queue (queue, payload, task) VALUES ('q', %s, 'tests.app.tasks.add')", [payload])
        lease = claim_one()
        assert run_lease(lease).ending is Ending.FAILED
        ack(lease_with(lease, payload=None))
    assert evidence.read() == []


def test_a_lease_tells_the_instants_of_its_row_to_the_microsecond(foreign, sql):
    job_id = foreign.enqueue()
    sql(f"UPDATE job_queue SET created_at = {NOW}, expires_at = {LATER} WHERE id = %s", [job_id])
    lease = claim_one()
    found = Job.objects.values_list("run_at", "created_at", "locked_at", "lock_until").get(pk=job_id)
    assert (lease.run_at, lease.created_at, lease.locked_at, lease.lock_until) == found


@pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="only they store zeros, and give them back")
@pytest.mark.parametrize("column", ["run_at", "created_at", "expires_at"])
@pytest.mark.parametrize("text", ["0000-00-00 00:00:00", "", "0000-01-01 00:00:00"])
def test_text_that_is_no_instant_does_not_stop_its_queue(foreign, sql, column, text):
    early, late = foreign.enqueue(), foreign.enqueue()
    sql("SET SESSION sql_mode = ''")
    try:
        sql(f"UPDATE job_queue SET {column} = %s WHERE id = %s", [text, early])
    finally:
        sql("SET SESSION sql_mode = DEFAULT")
    found = {lease.job_id for lease in claim("q", 2, worker="w")}
    # Expired long ago, if it is when it expires.
    assert found == ({late} if column == "expires_at" else {early, late})


def write_zeros(sql, column, job_id):
    sql("SET SESSION sql_mode = ''")
    try:
        sql(f"UPDATE job_queue SET {column} = '0000-00-00 00:00:00' WHERE id = %s", [job_id])
    finally:
        sql("SET SESSION sql_mode = DEFAULT")


@finding("A15")
@pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="only they store zeros, and give them back")
def test_a_lease_that_ends_at_no_instant_has_lapsed_and_does_not_stop_reaping(sql):
    make_jobs(2)
    odd, other = claim("q", 2, worker="w")
    write_zeros(sql, "lock_until", odd.job_id)
    assert [lease.job_id for lease in held_by("w", using="default")] == [odd.job_id, other.job_id]
    expire(other)
    assert reap().requeued == 2
    assert (state(odd.job_id), state(other.job_id)) == ("READY", "READY")
    assert JobAttempt.objects.filter(job_id=odd.job_id).count() == 1


@pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="only they store zeros, and give them back")
@pytest.mark.parametrize("column", ["locked_at", "run_at", "created_at", "updated_at", "last_started_at"])
def test_other_instants_that_are_none_do_not_stop_reaping_either(sql, column):
    make_job()
    lease = claim_one()
    write_zeros(sql, column, lease.job_id)
    expire(lease)
    assert reap().requeued == 1


@pytest.mark.skipif(VENDOR != "postgres", reason="only PostgreSQL has infinite instants")
@pytest.mark.parametrize("instant", ["infinity", "-infinity", "4000-01-01 BC", "20000-01-01"])
def test_an_instant_that_python_cannot_read_does_not_stop_its_queue(foreign, sql, instant):
    early, late = foreign.enqueue(), foreign.enqueue()
    sql("UPDATE job_queue SET created_at = %s WHERE id = %s", [instant, early])
    if "-" in instant[:1] or "BC" in instant:
        sql("UPDATE job_queue SET run_at = %s WHERE id = %s", [instant, early])
    else:
        sql("UPDATE job_queue SET expires_at = %s WHERE id = %s", [instant, early])
    assert {lease.job_id for lease in claim("q", 2, worker="w")} == {early, late}


@pytest.mark.skipif(VENDOR != "postgres", reason="only PostgreSQL has infinite instants")
@pytest.mark.parametrize("instant", ["infinity", "-infinity", "4000-01-01 BC", "20000-01-01"])
@pytest.mark.parametrize("column", ["run_at", "created_at", "updated_at", "cancel_requested_at"])
def test_an_instant_that_python_cannot_read_stops_nobody_who_looks_after_leases(foreign, sql, column, instant):
    odd, other = foreign.enqueue(), foreign.enqueue()
    claim("q", 2, worker="w")
    sql(f"UPDATE job_queue SET {column} = %s WHERE id = %s", [instant, odd])
    assert {lease.job_id for lease in held_by("w", using="default")} == {odd, other}
    assert release_held(odd)
    assert cancel(odd) == (column != "cancel_requested_at")
    expire(other)
    assert reap().requeued == 1
    assert {found.pk for found in Job.objects.all()} == {odd, other}


def test_counts_at_their_end_do_not_keep_other_leases_from_being_reaped(foreign, sql):
    odd, other = foreign.enqueue(), foreign.enqueue()
    expire(*claim("q", 2, worker="w"))
    sql("UPDATE job_queue SET attempts = 2147483647, crashes = 2147483647 WHERE id = %s", [odd])
    found = reap()
    assert (found.requeued, found.dead) == (1, 1)
    assert (state(odd), state(other)) == ("FAILED", "READY")
