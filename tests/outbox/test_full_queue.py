"""Events on their way into a queue that is full or drains wait until it has room, and use no attempt."""

import pytest
from django.test import override_settings

from jobqueue import flow
from jobqueue.models import Job
from jobqueue.outbox import Relay
from jobqueue.producer import back_pressure
from jobqueue.transitions import ack, claim
from tests.outbox.helpers import drain, event, make_due, pending, say

pytestmark = pytest.mark.django_db


@pytest.fixture
def full_at_two():
    routes = {"OUTBOX": {"ROUTES": {"*": "queue:orders"}, "MAX_ATTEMPTS": 1}}
    with override_settings(JOBQUEUE={"QUEUES": {"orders": {"MAX_READY": 2}}, **routes}):
        yield


def numbers():
    return [job.payload["payload"] for job in Job.objects.order_by("id")]


def test_a_queue_takes_as_many_as_it_has_room_for_and_the_others_wait(full_at_two):
    ids = [say("t", n, "key") for n in range(3)]
    assert drain()["delivered"] == 2
    assert (numbers(), pending()) == ([0, 1], ids[2:])
    assert event(ids[2]).attempts == 0


def test_what_waited_is_delivered_when_jobs_have_ended(full_at_two):
    for n in range(3):
        say("t", n, "key")
    drain()
    for lease in claim("orders", 2, worker="w"):
        ack(lease)
    # A second later, and another relay: the first one waits a while before it tries a destination again.
    back_pressure._backlogs._known.clear()
    make_due()
    assert drain(Relay("default"))["delivered"] == 1
    assert (numbers(), pending()) == ([0, 1, 2], [])


def test_a_queue_that_drains_takes_none(full_at_two):
    flow.drain("orders", reason="moves")
    event_id = say("t", 1)
    assert drain()["delivered"] == 0
    assert (event(event_id).attempts, pending()) == (0, [event_id])
