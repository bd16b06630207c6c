"""A row that an open transaction has inserted: no thread of a worker waits long for what becomes of it."""

import pytest
from django.db import connection

from jobqueue import flow, task
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.exceptions import DatabaseBusy
from jobqueue.gates import breaker
from jobqueue.gates.breaker import Run
from jobqueue.gates.rules import forget_rules
from jobqueue.maintenance import queue_levels
from jobqueue.models import BreakerState, FlowRule, Gate, GateSlot, Schedule
from jobqueue.schedules import versions
from jobqueue.schedules.declaring import declare
from jobqueue.transitions import ack
from tests.app import tasks
from tests.factories import make_jobs
from tests.gates import jobs
from tests.gates.helpers import add, take, taken
from tests.marks import committed, finding
from tests.races.actors import Actor, holding
from tests.schedules.helpers import USING, begin
from tests.settings import VENDOR

pytestmark = [
    committed,
    pytest.mark.usefixtures("own_registry"),
    pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one writer at a time: it has no locks of rows"),
]


def while_open(insert, work):
    """What `work` returns or raises while another transaction has inserted something and not ended."""
    with holding(insert):
        return Actor(work).outcome()


def bounds(settings):
    settings.JOBQUEUE = {"QUEUES": {"q": {"CONCURRENCY": (1, 8)}}}
    forget_rules()
    return load()


@finding("F5")
def test_the_breaker_of_a_service_that_fails_for_the_first_time_is_told_later():
    failures = [[Run(number, 1, 1.0, 0.0)] for number in range(5)]
    by_hand = flow.breaker("stripe")

    def told():
        return breaker.failed("stripe", failures, using="default")

    assert isinstance(while_open(lambda: by_hand.open("for the test"), told), DatabaseBusy)
    assert BreakerState.objects.get().by_hand


@finding("F5")
def test_the_level_of_a_queue_is_moved_later(settings):
    configured = bounds(settings)
    make_jobs(5)
    taken()

    def move():
        return queue_levels.run_once(configured, using="default")

    assert while_open(lambda: flow.pause("q", reason="for the test"), move) == {"levels_moved": 0}
    flow.resume("q")
    assert move() == {"levels_moved": 1}


@finding("F5")
def test_nor_does_the_level_of_a_queue_wait_for_a_row_that_is_locked(settings):
    configured = bounds(settings)
    FlowRule.objects.create(queue="q")
    make_jobs(5)
    taken()
    with holding(lambda: list(FlowRule.objects.select_for_update())):
        moving = Actor(queue_levels.run_once, configured, using="default")
        assert not moving.is_blocked()
        assert moving.result() == {"levels_moved": 0}
    assert queue_levels.run_once(configured, using="default") == {"levels_moved": 1}


@finding("F5")
def test_schedules_with_other_names_are_put_in_force():
    begin("first", every=60)
    declare("taken", tasks.add, (1, 2), None, {"every": 60}, "code")
    declare("free", tasks.add, (1, 2), None, {"every": 60}, "code")
    row = Schedule.objects.get()
    row.pk, row.name = None, "taken"
    while_open(lambda: row.save(force_insert=True), lambda: versions.announce(USING))
    assert {*Schedule.objects.values_list("name", flat=True)} == {"first", "taken", "free"}


@finding("F5")
def test_a_claim_waits_for_no_slot_and_no_gate_that_another_claim_makes():
    work = task(queue_name="q", concurrency_limit=2, rate_limit="1000/s")(jobs.work)
    other = task(queue_name="q")(jobs.other)
    for lease in (add(1, work) and take()).values():
        ack(lease)
    slots, gates = [*GateSlot.objects.all()], [*Gate.objects.all()]
    GateSlot.objects.all().delete()
    Gate.objects.all().delete()
    add(1, work)
    (free,) = add(1, other)

    def as_claims_do():
        locks = vendor("default").locks
        locks.being_inserted(connection, GateSlot, ("subject", "number"), [(one.subject, one.number) for one in slots])
        locks.being_inserted(connection, Gate, ("subject",), [(one.subject,) for one in gates])
        GateSlot.objects.bulk_create(slots)
        Gate.objects.bulk_create(gates)

    with holding(as_claims_do):
        claiming = Actor(taken)
        assert not claiming.is_blocked()
        assert claiming.result() == [free]
