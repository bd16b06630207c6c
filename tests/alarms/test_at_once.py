"""Looks and tells of several processes at once."""

import threading

import pytest
from django.db import connection, transaction

from jobqueue import alarms
from jobqueue.alarms import delivery
from jobqueue.alarms.delivery import Told, tell_due
from jobqueue.conf import load
from jobqueue.models import JobAlarm
from tests.alarms.helpers import look_again
from tests.blocking import is_held_up
from tests.factories import make_jobs
from tests.marks import committed
from tests.patience import patient

pytestmark = committed
heard = []


def hook(alarm):
    """A function of the project."""
    heard.append(alarm)


@pytest.fixture
def fires(settings):
    """An alarm that fires, and of which nobody was told."""
    heard.clear()
    hooks = [{"HOOK": "tests.alarms.test_at_once.hook"}]
    settings.JOBQUEUE = {"ALARMS": {"mail": {"ready": 3}, "NOTIFY": hooks}}
    make_jobs(5, "mail")
    look_again()
    look_again()
    assert len(alarms.firing()) == 1


def in_thread(work):
    def run():
        try:
            work()
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_an_outcome_is_written_although_another_transaction_has_the_row(fires):
    pk = JobAlarm.objects.get(queue="mail").pk
    notice, key = delivery._take(pk, {delivery.key_of(load().alarms.notify[0])}, "default")
    with transaction.atomic():
        JobAlarm.objects.select_for_update().get(pk=pk)
        thread = in_thread(lambda: delivery._note(pk, notice, key, None, "default"))
        assert is_held_up(lambda: not thread.is_alive())
    thread.join(patient())
    assert not thread.is_alive()
    assert JobAlarm.objects.get(pk=pk).notices == []


def test_of_four_that_tell_at_once_one_does(fires):
    told = []
    threads = [in_thread(lambda: told.append(tell_due(load(), using="default"))) for _ in range(4)]
    for thread in threads:
        thread.join(patient())
    assert sorted(found.told for found in told) == [0, 0, 0, 1]
    assert len(heard) == 1
    assert tell_due(load(), using="default") == Told()
