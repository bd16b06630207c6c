"""Batch handlers under kills and with poison rows: no row lost, none done twice, no neighbour dead."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress

import pytest

from jobqueue import enqueue, enqueue_many
from jobqueue.models import Job
from tests.app.models import Account
from tests.marks import committed
from tests.proofs.running import wait_for

pytestmark = [committed, pytest.mark.timeout(600)]

PAYMENTS = Job.objects.filter(queue="payments")


def live():
    return PAYMENTS.filter(status__in=(Job.Status.READY, Job.Status.PROCESSING)).count()


def kill_unpoisoned(victim, poison_ids):
    """SIGKILL a process that has no poison row in its hands: it might be charged for one that it has not started."""
    with suppress(ProcessLookupError):
        os.kill(victim, signal.SIGSTOP)
        clean = not PAYMENTS.filter(pk__in=poison_ids, status=Job.Status.PROCESSING).exists()
        os.kill(victim, signal.SIGKILL if clean else signal.SIGCONT)
        return clean
    return False


def test_poison_rows_and_kills_among_batches(run_worker, full, figure):
    """Calls of up to 50 rows, acks and effects in one commit; some rows kill the process, and so does somebody else."""
    total, poisons, kills = (10_000, 20, 10) if full else (150, 1, 1)
    poison_ids = []
    for part in range(poisons):
        size = total // poisons
        numbers = range(part * size, (part + 1) * size)
        enqueue_many("payments", [{"n": n} for n in numbers], max_attempts=10)
        poison_ids.append(enqueue("payments", {"n": -1, "die": 1}, max_attempts=3))
    worker = run_worker("--processes", "2", "--concurrency", "2", "--lease", "30s")
    killed = 0
    random.seed(total)
    wait_for(lambda: worker.lines("start"), 30, "the first call")
    while live():
        victims = {int(line[1]) for line in worker.lines("start")[-200:]} & set(worker.children())
        if killed < kills and victims:
            killed += kill_unpoisoned(random.choice(sorted(victims)), poison_ids)
        seen = live()
        wait_for(lambda: live() < max(1, seen - total // (kills + 5)) or not live(), 200, "more ends")  # noqa: B023
        time.sleep(0.05)
    assert worker.stop() == 0
    starts = worker.lines("start")
    assert not PAYMENTS.exclude(pk__in=poison_ids).exclude(status=Job.Status.DONE).exists(), worker.output()[-2000:]
    assert set(PAYMENTS.filter(pk__in=poison_ids).values_list("status", "attempts")) == {(Job.Status.FAILED, 3)}
    counted = Counter(line[2] for line in starts)
    # Fewer where its process died for another reason between the claim of its thread and its first line.
    most = max(counted[str(job_id)] for job_id in poison_ids)
    assert most == 3
    assert len({(line[2], line[4]) for line in starts}) == len(starts), "one claim was started twice"
    owners = Counter(Account.objects.values_list("owner", flat=True))
    wrong = [n for n in range(total) if owners.pop(str(n), 0) != 1]
    assert (wrong, owners) == ([], Counter())
    charged = PAYMENTS.filter(attempts__gt=0).exclude(pk__in=poison_ids)
    figure("rows", total)
    figure("rows that kill", poisons)
    figure("processes killed from outside", killed)
    figure("most starts of a row that kills, max_attempts = 3", most)
    figure("neighbours charged", charged.count())
    figure("most attempts a neighbour used", max(charged.values_list("attempts", flat=True), default=0))
    figure("effects lost or doubled", len(wrong))
