"""The worker table: one row per process, whatever happens to its session."""

import os

import pytest
from django.db import IntegrityError

from jobqueue import workers
from jobqueue.models import Worker
from tests.marks import committed

pytestmark = committed


def register(name="vm:1:abc/1.1"):
    workers.register(name, supervisor_pid=1, boot_id="b", queues="*", concurrency=4, using="default")


def test_a_process_whose_answer_was_lost_registers_again_and_has_one_row():
    register()
    register()
    assert Worker.objects.get().pid == os.getpid()


def test_a_name_that_another_process_has_is_refused():
    register()
    Worker.objects.update(pid=os.getpid() + 1)
    with pytest.raises(IntegrityError):
        register()
