"""A limit says that it is partial while workers run that do not know it."""

import pytest

from jobqueue import task
from jobqueue.flow import pause, set_limit
from jobqueue.flow.overview import queue_states
from jobqueue.gates.limits import own_limits
from jobqueue.maintenance.worker_rows import register, retire
from jobqueue.models import Worker
from tests.marks import committed

pytestmark = [committed, pytest.mark.usefixtures("own_registry")]
LIMITED = {"QUEUES": {"mail": {"CONCURRENCY": 3, "RATE": "10/s"}, "web": {"CONCURRENCY": (2, 8)}}}


def work(): ...


def start(name, queues="*", **columns):
    """A worker of this process's code, but for these columns of its row."""
    register(name, supervisor_pid=1, boot_id="b", queues=queues, concurrency=1, using="default")
    if columns:
        Worker.objects.filter(name=name).update(**columns)


def unaware(queue, task=None):
    (state,) = [one for one in queue_states(using="default") if (one.queue, one.task) == (queue, task)]
    return state.unaware_workers


def test_a_worker_announces_the_limits_of_its_tasks_and_settings(settings):
    settings.JOBQUEUE = LIMITED

    limited = task(concurrency_limit=2, rate_limit="30/m")(work)
    start("w")
    assert Worker.objects.get().gates == own_limits()
    assert own_limits() == {
        "tasks": {limited.module_path: [2, 0.5]},
        "queues": {"mail": [3, "10/s"], "web": [[2, 8], None]},
    }


def test_a_limit_that_all_workers_know_is_not_partial(settings):
    settings.JOBQUEUE = LIMITED
    start("a")
    start("b")
    assert [unaware(queue) for queue in ("mail", "web")] == [0, 0]


def test_a_limit_of_the_settings_is_partial_while_a_worker_runs_that_has_other_settings(settings):
    settings.JOBQUEUE = {}
    start("old")
    settings.JOBQUEUE = LIMITED
    start("new")
    assert [unaware(queue) for queue in ("mail", "web")] == [1, 1]
    retire("old", "test", using="default")
    assert [unaware(queue) for queue in ("mail", "web")] == [0, 0]


def test_a_worker_that_does_not_serve_the_queue_does_not_count(settings):
    settings.JOBQUEUE = {}
    start("old", queues="web,-mail")
    settings.JOBQUEUE = LIMITED
    assert [unaware(queue) for queue in ("mail", "web")] == [0, 1]


def test_what_an_operator_sets_is_known_to_every_worker_that_knows_limits_at_all(settings):
    start("new")
    set_limit("mail", concurrency=1)
    pause("web", reason="deploy")
    assert [unaware(queue) for queue in ("mail", "web")] == [0, 0]
    start("before there were limits", gates=None)
    assert [unaware(queue) for queue in ("mail", "web")] == [1, 1]


def test_a_limit_of_a_task_that_is_set_by_an_operator_is_known_to_code_without_one():
    limited = task(concurrency_limit=2)(work)
    start("other code", gates={"tasks": {}, "queues": {}})
    set_limit("mail", task=limited, rate="1/s")
    assert unaware("mail", limited.module_path) == 0


@pytest.mark.parametrize("stored", [[], "x", 1, {}, {"queues": []}, {"queues": {"mail": "x"}}])
def test_what_cannot_be_read_counts_as_not_known(stored, settings):
    settings.JOBQUEUE = LIMITED
    start("w", gates=stored)
    assert unaware("mail") == 1


def test_a_queue_without_a_limit_needs_no_worker_that_knows_it(settings):
    start("before there were limits", gates=None)
    settings.JOBQUEUE = {"QUEUES": {"mail": {"MAX_ATTEMPTS": 3}}}
    assert unaware("mail") == 0
