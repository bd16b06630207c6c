"""A group whose workers are killed at random: each member is done, and the callback is enqueued once."""

import signal

from jobqueue import group, groups
from jobqueue.models import Job
from tests.app import tasks
from tests.marks import committed
from tests.patience import wait_until

pytestmark = committed


def test_the_callback_comes_once_although_workers_are_killed(worker):
    with group("killed", on_done=tasks.group_done) as g:
        g.add_many(tasks.work, [(0.02,)] * 200)
    workers = [worker() for _ in range(2)]
    for least in (30, 90):
        wait_until(lambda least=least: groups.get(g.id).done >= least, what=f"{least} members that are done")
        victim = workers.pop(0)
        victim.signal_all(signal.SIGKILL)
        victim.end()
        workers.append(worker())
    # The leases of the dead run out first.
    wait_until(lambda: groups.get(g.id).state == "ended", what="the end of the group")
    callbacks = Job.objects.filter(task="tests.app.tasks.group_done")
    wait_until(lambda: callbacks.filter(status=Job.Status.DONE).exists(), what="the callback")
    for one in workers:
        one.signal(signal.SIGTERM)
    assert [one.wait() for one in workers] == [0] * len(workers)
    found = groups.get(g.id)
    assert (found.total, found.done, found.outstanding) == (200, 200, 0)
    assert callbacks.count() == 1
