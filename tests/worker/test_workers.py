"""The worker table: one row per process, whatever happens to its session."""

import os

import pytest
from django.db import IntegrityError

from jobqueue.db.clock import UtcNowPlus
from jobqueue.maintenance import worker_rows
from jobqueue.models import Worker
from tests.marks import committed, finding

pytestmark = committed


def register(name="vm:1:abc/1.1"):
    worker_rows.register(name, supervisor_pid=1, boot_id="b", queues="*", concurrency=4, using="default")


def test_a_process_whose_answer_was_lost_registers_again_and_has_one_row():
    register()
    register()
    assert Worker.objects.get().pid == os.getpid()


def test_a_name_that_another_process_has_is_refused():
    register()
    Worker.objects.update(pid=os.getpid() + 1)
    with pytest.raises(IntegrityError):
        register()


def heard_of(name, seconds_ago):
    Worker.objects.filter(name=name).update(heartbeat_at=UtcNowPlus(-seconds_ago))


def stopped():
    return dict(Worker.objects.exclude(stopped_at=None).values_list("name", "stop_reason"))


def test_a_worker_that_was_not_heard_of_for_long_is_marked_and_another_one_not():
    register("silent")
    register("heard")
    heard_of("silent", 61)
    heard_of("heard", 50)
    assert worker_rows.retire_silent(60, using="default") == 1
    assert stopped() == {"silent": "silent: no heartbeat"}


@finding("A13")
def test_a_worker_whose_heartbeats_are_far_apart_is_silent_after_three_of_its_own():
    for name, seconds_ago in (("living", 440), ("dead", 460)):
        register(name)
        if hasattr(Worker, "heartbeat_seconds"):
            Worker.objects.filter(name=name).update(heartbeat_seconds=150.0)
        heard_of(name, seconds_ago)
    worker_rows.retire_silent(60, using="default")
    assert list(stopped()) == ["dead"]


@finding("A13")
def test_a_worker_that_was_taken_for_silent_and_is_not_runs_again():
    register()
    heard_of("vm:1:abc/1.1", 61)
    worker_rows.retire_silent(60, using="default")
    assert stopped()
    worker_rows.renew(["vm:1:abc/1.1"], using="default")
    assert stopped() == {}
    assert worker_rows.retire_silent(60, using="default") == 0


def test_a_worker_that_has_ended_does_not_run_again():
    register()
    worker_rows.retire("vm:1:abc/1.1", "done", using="default")
    worker_rows.renew(["vm:1:abc/1.1"], using="default")
    assert stopped() == {"vm:1:abc/1.1": "done"}


def test_a_renewal_tells_whose_row_is_gone():
    register()
    assert worker_rows.renew(["vm:1:abc/1.1"], using="default").missing == frozenset()
    assert worker_rows.renew(["vm:1:abc/1.1", "vm:1:abc/2.1"], using="default").missing == {"vm:1:abc/2.1"}
