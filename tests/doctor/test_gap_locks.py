"""Gap locks: what the doctor warns of really happens, and does not happen at the level that it asks for."""

import pytest
from django.db import OperationalError, connection, transaction

from tests.doctor.helpers import add_worker, ids
from tests.marks import committed
from tests.outbox.helpers import other_connection
from tests.settings import VENDOR

pytestmark = [
    committed,
    pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="the others lock no gaps"),
]
LEVEL = "transaction_isolation" if VENDOR == "mysql" else "tx_isolation"
#: a claim as programs with plain SQL write it, of a queue without jobs
CLAIM = (
    "SELECT id FROM job_queue FORCE INDEX (ix_pick) WHERE queue = 'mail' AND status = 0 AND gate = 0 AND priority = 0 "
    "AND run_at <= UTC_TIMESTAMP(6) ORDER BY run_at, id LIMIT 10 FOR UPDATE SKIP LOCKED"
)
ENQUEUE = (
    "INSERT INTO job_queue (queue, status, priority, run_at, payload) VALUES ('mail', 0, 0, UTC_TIMESTAMP(6), '1')"
)


@pytest.fixture
def session():
    """session(level): let the sessions of this process have an isolation level."""

    def change(level):
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION {LEVEL} = '{level}'")

    yield change
    connection.close()


def enqueue_beside_a_claim():
    """Another session enqueues into the queue while the transaction of a claim is open."""
    with transaction.atomic(), connection.cursor() as cursor, other_connection() as other:
        cursor.execute(CLAIM)
        assert cursor.fetchall() == ()
        with other.cursor() as producer:
            producer.execute("SET SESSION innodb_lock_wait_timeout = 1")
            producer.execute(ENQUEUE)


def test_at_repeatable_read_a_claim_keeps_others_from_enqueueing_and_the_doctor_finds_it(session):
    add_worker()
    session("REPEATABLE-READ")
    assert ids() == ["jobqueue.W022"]
    with pytest.raises(OperationalError, match="1205"):
        enqueue_beside_a_claim()


def test_at_read_committed_it_does_not_and_the_doctor_finds_nothing(session):
    add_worker()
    session("READ-COMMITTED")
    assert ids() == []
    enqueue_beside_a_claim()
