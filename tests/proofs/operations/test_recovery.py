"""How soon a job starts again after the death of its worker, with the settings that a project has by default."""

from __future__ import annotations

import os
import signal
import time

import pytest

from jobqueue.models import Worker
from tests.app import tasks
from tests.marks import committed, finding
from tests.patience import patient
from tests.proofs.running import wait_for

pytestmark = [committed, pytest.mark.timeout(600)]
DEFAULTS = {"JOBQUEUE_TEST_DEFAULT_BACKOFF": "1"}
BOUND_SECONDS = 2.0


def seconds_to_second_start(since, *workers):
    """How long after `since` (monotonic) the second start came, by whichever worker."""

    def starts():
        return sum(len(worker.lines("start")) for worker in workers)

    while starts() < 2:
        assert time.monotonic() - since < patient(120), "no second start"
        time.sleep(0.005)
    return time.monotonic() - since


@finding("item-2")
def test_the_recovery_of_a_job_whose_process_was_killed_takes_two_seconds_at_most(run_worker, full, figure, tmp_path):
    """A child is killed (-9) while it runs a job, default settings: seconds until the job starts again."""
    found = []
    for n in range(20 if full else 2):
        gate = tmp_path / f"gate-{n}"
        tasks.gated.enqueue(str(gate))
        worker = run_worker(**DEFAULTS)
        (start,) = wait_for(lambda: worker.lines("start"), 30, "the first start")  # noqa: B023  at once
        since = time.monotonic()
        os.kill(int(start[1]), signal.SIGKILL)
        found.append(seconds_to_second_start(since, worker))
        gate.touch()
        assert worker.stop() == 0
    figure("deaths", len(found))
    figure("median s", round(sorted(found)[len(found) // 2], 2))
    figure("longest s", round(max(found), 2))
    figure("promised s", BOUND_SECONDS)
    # On a machine that does something else as well.
    assert max(found) <= min(3.5, patient(BOUND_SECONDS) / 5)


def test_the_recovery_of_a_job_whose_host_is_gone_takes_its_lease_and_two_seconds_at_most(
    run_worker, full, figure, tmp_path
):
    """Supervisor, monitor and children are killed (-9) at once, another worker is there: seconds to the next start."""
    lease_seconds = 60 if full else 5
    options = () if full else ("--lease", f"{lease_seconds}s")
    found = []
    for n in range(3 if full else 1):
        gate = tmp_path / f"gate-{n}"
        tasks.gated.enqueue(str(gate))
        lost = run_worker(*options, **DEFAULTS)
        wait_for(lambda: lost.lines("start"), 30, "the first start")  # noqa: B023  at once
        other = run_worker(*options, **DEFAULTS)
        wait_for(
            lambda: Worker.objects.filter(name__contains=f":{other.process.pid}:").exists(),  # noqa: B023  at once
            30,
            "the other worker",
        )
        since = time.monotonic()
        lost.kill_all()
        found.append(seconds_to_second_start(since, lost, other))
        gate.touch()
        assert other.stop() == 0
    figure("losses", len(found))
    figure("lease s", lease_seconds)
    figure("longest s", round(max(found), 2))
    figure("promised s", lease_seconds + BOUND_SECONDS)
    assert max(found) <= lease_seconds + patient(BOUND_SECONDS) / 5
