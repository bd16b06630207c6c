"""One job's row that a stranger has locked keeps no other job's end from being written."""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from django.db import connections

from jobqueue.models import Job
from jobqueue.transitions import ack, ack_many, reap
from jobqueue.transitions.leases import held
from jobqueue.worker.child.outcomes import settle
from jobqueue.worker.child.settler import Settler
from jobqueue.worker.run.attempt import Ending, Outcome
from tests.blocking import is_held_up
from tests.factories import claim_one, expire, make_job, make_jobs, state
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.races.actors import holding
from tests.settings import VENDOR
from tests.unit.test_settler import Outage, Pool, child_with

pytestmark = [committed, pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite locks the whole database, not a row")]


@contextmanager
def locked(lease):
    """A stranger has the row of this job."""
    with holding(lambda: list(held(lease).select_for_update())):
        yield


def ended(lease, ending=Ending.OK, error=None):
    return Outcome(lease, ending, 0.0, error=error, result=None)


class Written(Outage):
    """Closes the connections of the settler's thread, which does not end, each time that all is written."""

    def over(self):
        connections.close_all()


@contextmanager
def settling(outcomes):
    """A settler that writes these in its thread; its pool."""
    pool = Pool()
    Settler(child_with(pool, Written()), threads=1)
    pool.ends.put(*outcomes)
    yield pool


def leases_of(count):
    from jobqueue.transitions import claim

    make_jobs(count)
    return claim("q", count, worker="w")


ENDINGS = [(Ending.OK, None), (Ending.FAILED, ValueError("x")), (Ending.CANCELED, None)]


@finding("A9")
@pytest.mark.parametrize(("ending", "error"), ENDINGS)
def test_others_are_written_while_it_is_locked_and_it_as_soon_as_it_is_free(ending, error):
    leases = leases_of(5)
    outcomes = [ended(lease) for lease in leases]
    outcomes[2] = ended(leases[2], ending, error)
    others = [lease.job_id for lease in leases if lease is not leases[2]]
    with locked(leases[2]), settling(outcomes) as pool:
        wait_until(lambda: {state(job_id) for job_id in others} == {"DONE"}, what="the ends of the others")
        # Their places are free, and what ends from now on is written.
        later = ended(leases_of(1)[0])
        pool.ends.put(later)
        wait_until(lambda: state(later.lease.job_id) == "DONE", what="the end of a later one")
        assert state(leases[2].job_id) == "PROCESSING"
        wait_until(lambda: len(pool.written) == 5, what="five free places")
    wait_until(lambda: state(leases[2].job_id) != "PROCESSING", what="its end")
    wait_until(lambda: len(pool.written) == 6, what="six free places")


def test_a_lost_one_is_told_apart_from_a_locked_one():
    leases = leases_of(3)
    expire(leases[0])
    reap()
    passed = []
    with locked(leases[1]):
        assert ack_many(leases, locked=passed) == [leases[0]]
        assert passed == [leases[1]]
        assert state(leases[2].job_id) == "DONE"
    assert ack_many([leases[1]], locked=passed) == []
    assert state(leases[1].job_id) == "DONE"


def test_what_is_locked_is_marked_and_kept():
    leases = leases_of(2)
    outcomes = [ended(lease) for lease in leases]
    with locked(leases[0]):
        assert settle(outcomes, SimpleNamespace(finished=0, failed=0, lost=0)) == outcomes[:1]
        assert outcomes[0].row_locked
    assert settle(outcomes[:1], SimpleNamespace(finished=0, failed=0, lost=0)) == []
    assert {state(lease.job_id) for lease in leases} == {"DONE"}
    assert Job.objects.count() == 2


def test_an_ack_of_ones_own_waits_for_the_row():
    make_job()
    lease = claim_one()

    def write():
        ack(lease)
        connections.close_all()

    thread = threading.Thread(target=write)
    with locked(lease):
        thread.start()
        assert is_held_up(lambda: not thread.is_alive())
    thread.join()
    assert state(lease.job_id) == "DONE"
