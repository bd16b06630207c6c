"""Each mode of unique, raced for by 50 threads, many times."""

from __future__ import annotations

import pytest

from jobqueue.models import Job
from tests.marks import committed
from tests.races.test_unique_races import TASKS, THREADS, race

pytestmark = committed


@pytest.mark.parametrize("mode", TASKS)
def test_all_racers_get_the_one_job(mode, full, figure):
    """50 threads enqueue at once with the same key: jobs added per race."""
    rounds, added = (20, []) if full else (1, [])
    for _ in range(rounds):
        Job.objects.all().delete()
        ids = race(TASKS[mode])
        added.append(Job.objects.count())
        assert ids == {Job.objects.get().pk}
    assert set(added) == {1}
    figure("unique", mode)
    figure("races of 50 threads", rounds)
    figure("jobs added, least / most", f"{min(added)} / {max(added)}")
    assert THREADS == 50
