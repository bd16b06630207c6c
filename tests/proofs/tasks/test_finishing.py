"""finish(): the effect and the job's end are one commit, wherever the worker is cut."""

from __future__ import annotations

import pytest

from jobqueue.db import vendor
from jobqueue.models import Job
from tests.app import finishing
from tests.app.models import Account
from tests.faults.finishing import by_sigkill, disconnected, walk
from tests.marks import committed
from tests.proofs.figures import FULL
from tests.proofs.running import wait_for
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.timeout(600)]

BODIES = [finishing.pays]
if FULL:
    BODIES += [finishing.pays_in_blocks, finishing.pays_inside_its_own_transaction, finishing.pays_as_a_coroutine]
#: more than the job has
MOMENTS = 21


def live():
    return Job.objects.filter(status__in=(Job.Status.READY, Job.Status.PROCESSING)).exists()


def name(task):
    return task.func.__name__


@pytest.mark.parametrize("body", BODIES, ids=name)
def test_a_process_killed_at_every_statement(body, figure):
    """SIGKILL before and after every statement, BEGIN and COMMIT of claim, job and end: the effect is there once."""
    stops, effects = walk(body, by_sigkill)
    # Claim, lock of the row, two writes and the end: at least five statements and two commits, each before and after.
    assert len(stops) >= 14
    figure("job", name(body))
    figure("moments", len(stops))
    figure("of them with the effect once", effects.count(1))


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no connection that could be lost")
@pytest.mark.parametrize("body", BODIES, ids=name)
def test_a_connection_lost_at_every_statement(body, figure):
    """The server ends the session before each of them, or after it and its answer is lost: the effect is there once."""
    stops, effects = walk(body, disconnected)
    # Where a claim is one statement, its UPDATE commits by itself.
    alone = [stop for stop in stops if stop.startswith("after UPDATE") and vendor("default").has_update_returning]
    commits = stops.count("after COMMIT") + len(alone[:1])
    assert commits >= 2
    figure("job", name(body))
    figure("moments", len(stops))
    figure("of them a lost answer to a commit", commits)
    figure("of them with the effect once", effects.count(1))


def test_the_walk_finds_a_job_that_writes_outside_of_finish():
    with pytest.raises(AssertionError, match="cut at moment"):
        walk(finishing.pays_too_early, by_sigkill)


def test_workers_of_runworker_killed_at_every_statement_of_the_job(run_worker, full, tmp_path, figure):
    """runworker, its children killed by SIGKILL at every statement of the job: run again, the effect is there once."""
    Account.objects.create(owner="all")
    rounds = 20 if full else 1
    for number in range(rounds):
        for moment in range(1, MOMENTS + 1):
            owner = f"{number}-{moment}"
            finishing.pays_and_dies.enqueue(owner, moment, str(tmp_path / owner))
    worker = run_worker("--concurrency", "1", "--processes", "7", "--lease", "60s")
    # Not --drain: where the server needs long to notice a death, the job's lease is left to run out.
    wait_for(lambda: not live(), 300 if full else 100, "the end of all jobs")
    assert worker.stop() == 0
    killed = [(line[5], int(line[6])) for line in worker.lines("killed")]
    last = max(moment for _, moment in killed)
    assert sorted(killed) == sorted((f"{n}-{m}", m) for n in range(rounds) for m in range(1, last + 1))
    assert 10 <= last < MOMENTS, "every moment of the job, and the first ones beyond it"
    assert set(Job.objects.values_list("status", flat=True)) == {Job.Status.DONE}, worker.output()[-2000:]
    owners = Account.objects.exclude(owner="all").values_list("owner", flat=True)
    doubled, lost = len(owners) - len(set(owners)), rounds * MOMENTS - len(set(owners))
    assert (doubled, lost) == (0, 0)
    assert Account.objects.get(owner="all").balance == rounds * MOMENTS
    figure("jobs", rounds * MOMENTS)
    figure("children killed", len(killed))
    figure("moments of the job", last)
    figure("effects doubled / lost", f"{doubled} / {lost}")
