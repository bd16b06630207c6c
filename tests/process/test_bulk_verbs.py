"""A bulk verb goes on when the worker that carries it out is killed, and no job is changed twice."""

import signal

import pytest

from jobqueue import bulk_verbs, enqueue_many
from jobqueue.bulk_verbs import Who
from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import AuditEvent, Job
from tests.marks import committed
from tests.patience import wait_until

pytestmark = committed
#: so many jobs that the worker is killed before it is done; deleting is faster than writing, and gets more jobs
JOBS = 3000


def dead_letters(count):
    """Dead letters in a queue that the workers of these tests do not serve."""
    enqueue_many("old", range(count), max_attempts=1)
    Job.objects.filter(queue="old").update(
        status=Job.Status.FAILED, attempts=1, cause="unknown", finished_at=UtcNowPlus(-60)
    )


def record(verb):
    return bulk_verbs.record(verb, {"queue": "old", "state": "failed"}, who=Who(program="a test"))


def changed():
    """How many jobs are changed, as far as that is recorded."""
    return AuditEvent.objects.get().changed


@pytest.mark.parametrize(("verb", "count"), [("retry", JOBS), ("discard", JOBS), ("prune", 7 * JOBS)])
def test_when_its_worker_is_killed_another_one_goes_on_where_it_was(verb, count, worker):
    dead_letters(count)
    event = record(verb)
    first = worker("--queues=-old")
    wait_until(changed, what="the first chunk")
    first.signal_all(signal.SIGKILL)
    first.end()
    half = AuditEvent.objects.get()
    assert half.phase == "running", "it was done before the worker was killed"
    left = Job.objects.filter(queue="old", status=Job.Status.FAILED).count()
    # A chunk and its progress are committed together.
    assert (half.changed, half.refused, left) == (half.changed, 0, count - half.changed)
    second = worker("--queues=-old")
    wait_until(lambda: AuditEvent.objects.get().ended_at, what="the end of the bulk action")
    done = AuditEvent.objects.get()
    assert (done.pk, done.phase, done.changed, done.refused) == (event.pk, "done", count, 0)
    found = {*Job.objects.filter(queue="old").values_list("status", "epoch", "max_attempts")}
    wanted = {"retry": {(Job.Status.READY, 1, 2)}, "discard": {(Job.Status.CANCELED, 0, 1)}, "prune": set()}[verb]
    assert found == wanted
    second.prints(f"bulk action {event.pk} ({verb}): done")
    second.signal(signal.SIGTERM)
    assert second.wait() == 0
    assert "Traceback" not in second.text()


def test_two_workers_share_the_chunks_and_the_loss_of_one_is_not_noticed(worker):
    dead_letters(JOBS)
    record("retry")
    groups = [worker("--queues=-old") for _ in range(2)]
    wait_until(changed, what="the first chunk")
    groups[0].signal_all(signal.SIGKILL)
    groups[0].end()
    wait_until(lambda: AuditEvent.objects.get().ended_at, what="the end of the bulk action")
    done = AuditEvent.objects.get()
    assert (done.phase, done.changed, done.refused) == ("done", JOBS, 0)
    assert {*Job.objects.filter(queue="old").values_list("status", "epoch")} == {(Job.Status.READY, 1)}
    groups[1].signal(signal.SIGTERM)
    assert groups[1].wait() == 0


def test_stop_ends_it_while_a_worker_carries_it_out(worker):
    dead_letters(JOBS)
    event = record("retry")
    group = worker("--queues=-old")
    wait_until(changed, what="the first chunk")
    assert bulk_verbs.stop(event.pk, by="ann")
    stopped = AuditEvent.objects.get()
    assert (stopped.phase, stopped.problem) == ("stopped", "stopped by ann")
    # Another action, which the same worker does: it has nothing to do with the first one any more.
    other = bulk_verbs.record("cancel", {"queue": "old", "state": "ready"}, who=Who(program="a test"))
    wait_until(lambda: AuditEvent.objects.get(pk=other.pk).ended_at, what="the end of the other action")
    last = AuditEvent.objects.get(pk=event.pk)
    assert (last.changed, last.ended_at) == (stopped.changed, stopped.ended_at)
    assert Job.objects.filter(queue="old", epoch=1).count() == stopped.changed
    assert AuditEvent.objects.get(pk=other.pk).changed == stopped.changed
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
