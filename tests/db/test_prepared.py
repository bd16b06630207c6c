"""One prepared statement for many values."""

import pytest

from jobqueue import enqueue
from jobqueue.explain.rows import due_of_level, first_due_of_level
from jobqueue.gates import backlog
from jobqueue.gates.backlog import levels_below, ranks, top_levels

pytestmark = pytest.mark.django_db
NAMES = ["a", "b'b", "c%s", "d\\d", "ü"]


@pytest.fixture
def jobs(db):
    return [enqueue(name, number, priority=number) for number, name in enumerate(NAMES * 3)]


def test_each_of_many_values_finds_what_it_finds_alone(jobs):
    statement = first_due_of_level("default", 5)
    runs = [{"queue": name, "gate": 0, "level": level} for name in [*NAMES, "none"] for level in range(15)]
    alone = sorted(row for run in runs for row in statement.rows(**run))
    assert len(alone) == len(jobs)
    for at_once in (1, 2, 100):
        assert sorted(statement.seek_each(runs, at_once)) == sorted(statement.rows_of_each(runs, at_once)) == alone
    assert statement.seek_each([]) == []


def test_counts_name_what_they_have_counted(jobs):
    runs = [{"queue": name, "gate": 0, "level": level} for level in (0, 5) for name in ("a", "none")]
    found = due_of_level("default", 10).seek_each(runs)
    assert sorted(found, key=str) == sorted([(1, "a", 0, 0), (1, "a", 0, 5), *[(0, None, None, None)] * 2], key=str)


def test_levels_are_walked_downwards(jobs):
    found = top_levels([(name, 0, 0) for name in NAMES], "default")
    assert {level.queue: level.level for level in found} == dict(zip(NAMES, range(10, 15), strict=True))
    found = levels_below(found, "default")
    assert {level.queue: level.level for level in found} == dict(zip(NAMES, range(5, 10), strict=True))


@pytest.mark.parametrize("many", [1, 1000])
@pytest.mark.parametrize("each", [10, 1])
def test_ranks_are_the_levels_of_each_place_from_the_highest_down(jobs, monkeypatch, many, each):
    monkeypatch.setattr(backlog, "MANY_PLACES", many)
    monkeypatch.setattr(backlog, "LEVELS_OF_A_PLACE", each)
    enqueue("other", 1, priority=3)
    places = [(name, 0, gate) for name in [*NAMES, "none"] for gate in (0, 1)]
    found = [{level.queue: level.level for level in rank} for rank in ranks(places, "default")]
    assert found == [dict(zip(NAMES, range(first, first + 5), strict=True)) for first in (10, 5, 0)]
    assert list(ranks([], "default")) == []
