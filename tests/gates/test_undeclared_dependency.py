"""Jobs whose dependency no task and no setting of the worker names: it comes from using(), or from a foreign program."""

from types import SimpleNamespace

import pytest

from jobqueue import flow
from jobqueue.gates import declared
from jobqueue.gates.rules import forget_rules
from jobqueue.worker.child.breakers import Breakers
from jobqueue.worker.shared.scoreboard import ProcessSlot
from tests.gates.helpers import add, take, waiting
from tests.marks import committed

pytestmark = committed


@pytest.fixture
def breakers(plain):
    """What a worker process that has just begun knows of breakers; no task has a dependency."""
    assert not declared.any_dependency()
    return Breakers(ProcessSlot(), SimpleNamespace(rules=None), "default", None, None)


def test_its_jobs_are_given_back_once_and_then_wait_behind_the_breaker(plain, breakers, transactional_db):
    flow.breaker("elsewhere").open("it is down")
    ids = add(3, plain.using(dependency="elsewhere"))
    leases = list(take().values())
    kept, shut = breakers.sift(leases)
    assert kept == []
    assert [lease.job_id for lease in shut] == ids
    later = add(2, plain.using(dependency="elsewhere"))
    assert take() == {}
    assert waiting() == later


def test_a_job_of_another_service_may_start(plain, breakers, transactional_db):
    flow.breaker("elsewhere").open("it is down")
    add(1, plain.using(dependency="here"))
    leases = list(take().values())
    assert breakers.sift(leases) == (leases, [])


def test_a_process_whose_jobs_have_no_dependency_reads_no_breakers(
    plain, breakers, transactional_db, django_assert_num_queries
):
    add(1, plain)
    leases = list(take().values())
    forget_rules()
    with django_assert_num_queries(0):
        assert breakers.sift(leases) == (leases, [])
    assert not declared.any_dependency()
