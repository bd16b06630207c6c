"""A pruner whose process dies, or loses its session, at any moment: nothing is half deleted, and nothing else is."""

from __future__ import annotations

from jobqueue.conf import load
from jobqueue.db.clock import UtcNowPlus
from jobqueue.maintenance.pruner import Pruner
from jobqueue.models import ArchivedJob, Job, JobAttempt, LockRow, ResultExpiry
from tests.faults.cuts import before_first, disconnected, each_cut, killed
from tests.marks import committed
from tests.retention.helpers import ended, kept, prune
from tests.settings import FULL

#: `make prove` walks each moment
STRIDE = 1 if FULL else 31

pytestmark = committed


def begin():
    """Jobs that stay, that are deleted, that are archived, and one whose result expires."""
    for model in (Job, JobAttempt, ArchivedJob, ResultExpiry, LockRow):
        model.objects.all().delete()
    stay = [ended("DONE", 1, attempts=1), ended("FAILED", 1, attempts=1)]
    for _ in range(3):
        ended("DONE", 8, attempts=1)
        ended("FAILED", 8, attempts=1)
    expired = ended("DONE", 0.5)
    ResultExpiry.objects.create(job_id=expired, ttl_seconds=60, expires_at=UtcNowPlus(-1))
    return stay


def work():
    pruner = Pruner(2)
    while True:
        pruner.run_once(load(), using="default")
        if not pruner.more:
            return


def whole(where):
    """Each job is there with its attempts, or gone with them; each archived one is not there."""
    jobs = {*Job.objects.values_list("pk", flat=True)}
    with_attempts = {*Job.objects.exclude(pk__in=ResultExpiry.objects.values("pk")).values_list("pk", flat=True)}
    assert {*JobAttempt.objects.values_list("job_id", flat=True)} == with_attempts, where
    archived = dict(ArchivedJob.objects.values_list("pk", "failures"))
    assert not jobs & {*archived}, where
    assert all(len(failures) == 1 for failures in archived.values()), where


@each_cut
def test_wherever_it_is_cut_each_job_is_there_or_gone_as_a_whole(cut, settings, figure):
    """A pruner cut before and after each statement: no job without its attempts, none both archived and there."""
    kept(settings, done="7d", failed={"AGE": "7d", "ARCHIVE": True})
    number, cuts = before_first(STRIDE), 0
    while True:
        number += STRIDE
        stay = begin()
        stopped = cut(number, work)
        whole(f"cut at moment {number}")
        prune(2)
        assert sorted(Job.objects.values_list("pk", flat=True)) == stay, f"cut at moment {number}"
        whole(f"after moment {number}")
        assert ArchivedJob.objects.count() == 3
        if not stopped:
            break
        cuts += 1
    assert number > 20
    figure("cut by", {killed: "SIGKILL", disconnected: "a lost session"}[cut])
    figure("moments", cuts)
    figure("jobs half deleted / deleted by mistake", "0 / 0")
