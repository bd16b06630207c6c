"""A redrive of many dead letters by real workers that are killed in the middle of it."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import pytest

from jobqueue.dead_letters import redrive
from jobqueue.models import Job, Redrive
from tests.marks import committed
from tests.proofs import audit
from tests.proofs.failures.dead import QUEUE, by_key, make_dead_letters
from tests.proofs.running import unended, wait_for

pytestmark = [committed, pytest.mark.timeout(1800)]

FAILING = 10
UNDONE = (Job.Status.READY, Job.Status.PROCESSING, Job.Status.FAILED)
#: what a redrive makes up for after a pause
CATCH_UP_SECONDS = 2.0


@dataclass
class Watch:
    """The steps of a redrive that were seen, with their instants by the clock of the server."""

    run_id: int
    canary: int
    steps: list[tuple[float, int]] = field(default_factory=list)

    def look(self):
        """The row, now."""
        run = Redrive.objects.get(pk=self.run_id)
        assert run.phase != "canary" or run.changed <= self.canary, "the rest waits for the canary"
        if not self.steps or run.changed > self.steps[-1][1]:
            self.steps.append((run.updated_at.timestamp(), run.changed))
        return run

    def until(self, condition, seconds, what):
        """Look until it is true of the row."""
        wait_for(lambda: condition(self.look()), seconds, what)


def held(steps):
    """(jobs, seconds) between the steps of a stretch without a kill, after what was caught up at its beginning."""
    later = [step for step in steps if step[0] >= steps[0][0] + 0.7]
    return (later[-1][1] - later[0][1], later[-1][0] - later[0][0]) if later else (0, 0.0)


@pytest.fixture
def audited():
    yield audit.start
    audit.stop()


def test_a_redrive_goes_through_canary_rate_and_kills(run_worker, jobs, audited, full, figure, tmp_path):
    """A redrive of dead letters by real workers: a canary that fails, one that passes, a rate, and kill -9 of the
    worker that carries it out."""
    total, rate, canary, kills = (100_000, 500, 100, 4) if full else (800, 200, 20, 1)
    up = tmp_path / "up"
    make_dead_letters(jobs.needs, str(up), total)
    keys = by_key()
    # One worker runs the jobs. The other one carries the redrive out, and is killed.
    runner = run_worker(QUEUE, "--no-reaper", "--processes", "2", "--lease", "60s")
    carrier = run_worker("nothing", "--lease", "60s")

    down = Watch(redrive(queue=QUEUE, canary=FAILING).id, FAILING)
    down.until(lambda run: run.phase == "stopped", 60, lambda: unended([runner, carrier]))
    assert "of the canary failed in its next attempt" in down.look().reason
    # The first failure stops it. The others of the canary have been retried already.
    wait_for(lambda: dead().count() == total, 30, "the end of the canary")
    assert (down.look().changed, len(runner.lines("start"))) == (FAILING, FAILING)

    up.touch()
    audited()
    begun = time.monotonic()
    oldest = list(dead().order_by("pk").values_list("pk", flat=True)[:canary])
    run = Watch(redrive(queue=QUEUE, canary=canary, rate=f"{rate}/s").id, canary)
    run.until(lambda run: run.phase == "running", 60, lambda: unended([runner, carrier]))
    assert Job.objects.filter(pk__in=oldest, status=Job.Status.DONE).count() == canary

    stretches, killed_at, waited = [], [], 0.0
    for number in range(1, kills + 1):
        run.steps.clear()
        goal = total * number // (kills + 1)
        run.until(lambda row: row.changed >= goal, 300, lambda: unended([carrier]))  # noqa: B023  at once
        carrier.kill_all()
        # A commit may have been on its way.
        time.sleep(0.2)
        killed_at.append(run.look().changed)
        stretches.append(list(run.steps))
        paused = time.monotonic()
        time.sleep(1.0)
        assert run.look().changed == killed_at[-1], "nobody goes on"
        carrier = run_worker("nothing", "--lease", "60s")
        run.until(lambda row: row.changed > killed_at[-1], 60, lambda: unended([carrier]))  # noqa: B023
        waited += time.monotonic() - paused
    run.steps.clear()
    run.until(lambda row: row.ended_at is not None, 600, lambda: unended([carrier]))
    took = time.monotonic() - begun
    stretches.append(list(run.steps))
    wait_for(lambda: not Job.objects.filter(status__in=UNDONE).exists(), 900, lambda: unended([runner]))
    assert (runner.stop(), carrier.stop()) == (0, 0)

    last = run.look()
    assert (last.phase, last.changed, last.refused) == ("done", total, 0)
    check_jobs(runner, total, keys)
    found = [held(steps) for steps in stretches if steps]
    per_second = sum(count for count, _ in found) / sum(seconds for _, seconds in found)
    # Instants are those of the ends of steps, so that in a second or two one slow step counts for much.
    low, high = (0.95, 1.05) if full else (0.5, 1.3)
    assert rate * low <= per_second <= rate * high
    assert total <= rate * (took + CATCH_UP_SECONDS * kills) + 1
    figure("dead letters", total)
    figure("touched by the canary that failed", FAILING)
    figure("canary", canary)
    figure("rate wanted /s", rate)
    figure("rate held /s", round(per_second, 1))
    figure("seconds", round(took))
    figure("of them without a worker", round(waited, 1))
    figure("steps", last.steps)
    figure("killed at", ", ".join(map(str, killed_at)))
    figure("keys", len(keys))
    figure("out of order / lost / run twice", "0 / 0 / 0")


def dead():
    return Job.objects.filter(queue=QUEUE, status=Job.Status.FAILED)


def check_jobs(runner, total, keys):
    """By the database's own records and what the jobs wrote: each was retried once and ran once, keys in order."""
    assert audit.violations() == []
    retried = Counter(job_id for job_id, old, new, _ in audit.edges() if (old, new) == (3, 0))
    ended = Counter(job_id for job_id, old, new, _ in audit.edges() if (old, new) == (1, 2))
    assert (len(retried), set(retried.values())) == (total, {1})
    assert (len(ended), set(ended.values())) == (total, {1})
    starts = [int(line[2]) for line in runner.lines("start")][FAILING:]
    assert (len(starts), len(set(starts))) == (total, total)
    key_of = {job_id: key for key, ids in keys.items() for job_id in ids}
    order = defaultdict(list)
    for job_id in starts:
        if job_id in key_of:
            order[key_of[job_id]].append(job_id)
    assert order == keys
