"""count_held_back(): jobs behind gates, by queue and gate, up to a cap."""

import pytest

from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import HELD_GATE
from jobqueue.ordering import KEY_GATE
from jobqueue.stats.live import count_held_back
from tests.factories import make_in_state, make_jobs, set_columns

pytestmark = pytest.mark.django_db


def read(*queues, most=1000):
    return count_held_back(queues, "default", lambda: None, most)


def behind(gate, count=1, queue="a", **columns):
    for job_id in make_jobs(count, queue, **columns):
        set_columns(job_id, gate=gate)


def test_jobs_are_counted_by_queue_and_gate_but_those_that_wait_for_a_person():
    make_in_state("DONE", "a")
    behind(KEY_GATE, 2)
    behind(KEY_GATE, 1, priority=7)
    behind(FLOW_GATE, 1)
    behind(PARENTS_GATE, 2, "b")
    behind(HELD_GATE, 2, "b")
    behind(PARENTS_GATE, 1, "c")
    make_jobs(5, "a")
    assert read("a", "b") == {"a": {KEY_GATE: 3, FLOW_GATE: 1}, "b": {PARENTS_GATE: 2}}
    assert read() == {}


def test_no_more_than_the_cap_are_read():
    behind(FLOW_GATE, 5)
    assert read("a", most=3) == {"a": {FLOW_GATE: 3}}
