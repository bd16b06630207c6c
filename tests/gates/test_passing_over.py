"""A worker hands over what it has found at once, and passes over the jobs in front of others a moment at a time."""

from datetime import timedelta

import pytest

from jobqueue.models import Job
from jobqueue.transitions import claim
from jobqueue.transitions.claiming import claimer as claiming
from jobqueue.transitions.claiming.claimer import Claimer
from tests.factories import make_job, make_jobs, now, set_columns
from tests.gates.helpers import add, waiting
from tests.marks import committed, finding

pytestmark = committed


@pytest.fixture
def claimer():
    return Claimer("w", "default", hand_over=True)


@pytest.fixture
def passes(monkeypatch):
    """How many rows each pass was to look at, in order."""
    looks = []
    for name in ("select_then_update", "update_returning"):
        take = getattr(claiming, name)
        monkeypatch.setattr(claiming, name, lambda request, take=take: [looks.append(request.look), take(request)][1])
    return looks


@pytest.fixture
def small_passes(monkeypatch):
    """A pass looks at ten jobs, and there is time for one pass in a claim."""
    monkeypatch.setattr(claiming, "EXPIRED_BATCH", 10)
    monkeypatch.setattr(claiming, "PASSES_SECONDS", 0.0)


def take(claimer, limit=4):
    return [lease.job_id for lease in claimer.claim("q", limit, lease_seconds=60)]


def take_first(claimer):
    """The first job; the claimer has seen by then that jobs of the queue have limits."""
    return next(found for found in iter(lambda: take(claimer, 1), None) if found)


def take_all(claimer, limit=4):
    """What claims bring, one after another, until one knows of no more."""
    found = [take(claimer, limit)]
    while claimer.more:
        found.append(take(claimer, limit))
    return [some for some in found if some]


@finding("F17")
def test_the_job_that_is_found_is_handed_over_before_those_behind_it_are_looked_at(limited, claimer, passes):
    first, *_ = add(30, limited(concurrency_limit=1))
    assert take(claimer) == [first]
    assert claimer.more
    assert max(passes) == 4


@finding("F17")
def test_the_next_claim_finds_the_job_behind_them(limited, claimer):
    first, *rest = add(30, limited(concurrency_limit=1))
    (behind,) = make_jobs(1)
    assert take_all(claimer) == [[first], [behind]]
    assert waiting() == rest


@finding("F17")
def test_a_claim_that_finds_nothing_goes_on_until_its_time_is_over(limited, claimer, small_passes, monkeypatch):
    add(60, limited(concurrency_limit=1))
    take_first(claimer)
    (behind,) = make_jobs(1)
    assert take(claimer) == []
    assert claimer.more
    assert 0 < len(waiting()) < 30
    monkeypatch.setattr(claiming, "PASSES_SECONDS", 6000)
    assert take(claimer) == [behind]
    assert len(waiting()) == 59


@finding("F17")
def test_expired_jobs_are_passed_over_in_the_same_way(claimer, small_passes):
    late = make_jobs(40)
    Job.objects.update(expires_at=now() - timedelta(hours=1))
    (live,) = make_jobs(1)
    assert take(claimer) == []
    assert claimer.more
    assert take_all(claimer) == [[live]]
    assert Job.objects.filter(pk__in=late, status=Job.Status.CANCELED).count() == len(late)


@finding("F17")
def test_after_as_many_passes_as_a_claim_may_make_there_are_more(limited, claimer, small_passes, monkeypatch):
    monkeypatch.setattr(claiming, "PASSES_SECONDS", 6000)
    monkeypatch.setattr(claiming, "PASSES_MAX", 2)
    add(60, limited(concurrency_limit=1))
    take_first(claimer)
    assert take(claimer) == []
    assert claimer.more


@finding("F17")
def test_jobs_whose_limits_a_claim_has_still_to_check_are_more(limited, claimer, small_passes):
    (one,) = add(1, limited(concurrency_limit=1))
    assert take_all(claimer) == [[one]]


@finding("F17")
def test_there_are_no_more_where_a_claim_has_seen_all(limited, claimer, small_passes):
    """Else a worker would claim without a pause."""
    assert take(claimer) == []
    assert not claimer.more
    make_jobs(3)
    take(claimer)
    assert not claimer.more
    add(3, limited(concurrency_limit=1))
    take_all(claimer)
    add(1, limited(concurrency_limit=1))
    assert take(claimer) == []
    assert not claimer.more


@finding("F17")
def test_a_claim_that_is_full_needs_not_be_told_of_more(limited, claimer):
    make_jobs(4)
    add(30, limited(concurrency_limit=1))
    assert len(take(claimer)) == 4
    assert not claimer.more


def test_claim_itself_brings_all_it_was_asked_for(limited):
    first, *_ = add(30, limited(concurrency_limit=1))
    behind = make_jobs(2)
    assert [lease.job_id for lease in claim("q", 3, worker="w")] == [first, *behind]


@finding("F17")
def test_a_higher_priority_that_is_added_meanwhile_comes_first(limited, claimer, small_passes):
    add(60, limited(concurrency_limit=1))
    take_first(claimer)
    make_jobs(1)
    assert take(claimer, 1) == []
    urgent = make_job()
    set_columns(urgent, priority=9)
    assert take(claimer, 1) == [urgent]


@finding("F17")
def test_however_slow_its_passes_are_a_claim_makes_a_large_one(limited, claimer, small_passes, passes):
    """Else a slow database would be asked for a few jobs, thousands of times."""
    add(60, limited(concurrency_limit=1))
    take_first(claimer)
    passes.clear()
    assert take(claimer, 1) == []
    assert passes == [1, 10]


def test_behind_an_expired_job_those_with_limits_keep_their_order(limited):
    first, _ = make_job(priority=3), make_job(priority=2, expires_at=now() - timedelta(hours=1))
    (second,) = add(1, limited(concurrency_limit=1).using(priority=1))
    make_jobs(1)
    assert [lease.job_id for lease in claim("q", 2, worker="w")] == [first, second]
