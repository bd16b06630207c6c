"""STARVE_SECONDS: old jobs of low priority get their turn; without it nothing changes and nothing costs more."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue.db import vendor
from jobqueue.db.clock import UtcNowPlus
from jobqueue.transitions import claim
from jobqueue.transitions.claiming import candidates
from tests import memories
from tests.factories import job, make_job, make_jobs, set_columns

pytestmark = pytest.mark.django_db
SETTING = {"QUEUES": {"q": {"STARVE_SECONDS": 300}}}


@pytest.fixture(autouse=True)
def look_now(monkeypatch):
    """Forget when this process has looked; after the next look it looks no more, however long the test takes."""
    monkeypatch.setattr(candidates, "AGED_LOOK_SECONDS", 600)
    memories.reset()


@pytest.fixture
def on(settings):
    settings.JOBQUEUE = SETTING


def claimed(limit, queue="q"):
    return [lease.job_id for lease in claim(queue, limit, worker="w")]


def aged(seconds, queue="q", **columns):
    """A job that has been due for so long."""
    job_id = make_job(queue, **columns)
    set_columns(job_id, run_at=UtcNowPlus(-seconds))
    return job_id


def stream(claims):
    """What is claimed one by one while a high priority never runs dry; each claim is a second after the other."""
    taken = []
    for _ in range(claims):
        make_jobs(2, priority=9)
        memories.reset()
        taken += claimed(1)
    return taken


def test_with_an_endless_stream_of_high_priority_a_low_one_never_runs_without_the_setting():
    low = aged(3600)
    assert low not in stream(30)


def test_with_the_setting_it_runs_when_it_has_waited_that_long(on):
    low = aged(200)
    assert low not in stream(10)
    set_columns(low, run_at=UtcNowPlus(-301))
    assert stream(1) == [low]


def test_the_lowest_priority_comes_first_and_in_it_the_oldest(on):
    high = make_job(priority=9)
    middle, low, older = aged(400, priority=5), aged(310), aged(320)
    assert claimed(10) == [older, low, middle, high]


def test_only_those_that_waited_so_long_come_first_and_the_others_later(on):
    young, old, high = make_job(), aged(400), make_job(priority=9)
    assert claimed(2) == [old, high]
    assert claimed(2) == [young]


def test_no_job_is_taken_twice_by_one_claim(on):
    ids = [aged(400, priority=n % 3) for n in range(9)] + [make_job(priority=n % 3) for n in range(9)]
    found = []
    while more := claimed(5):
        memories.reset()
        found += more
    assert sorted(found) == sorted(ids)
    assert {job(i).fence for i in ids} == {1}


def test_a_limit_holds(on):
    for _ in range(9):
        aged(400)
    assert len(claimed(4)) == 4


def test_the_claims_of_the_same_second_go_by_priority(on):
    lows = [aged(400), aged(390)]
    highs = make_jobs(3, priority=9)
    assert [claimed(1), claimed(1), claimed(1)] == [[lows[0]], [highs[0]], [highs[1]]]


def test_jobs_that_may_not_run_are_not_taken(on):
    gated, delayed = aged(400, gate=1), make_job()
    set_columns(delayed, run_at=UtcNowPlus(600))
    high = make_job(priority=9)
    assert claimed(5) == [high]
    assert job(gated).status == 0


def test_other_queues_go_by_priority(on):
    low, high = aged(400, "other"), make_job("other", priority=9)
    assert claimed(1, "other") == [high]
    assert claimed(1, "other") == [low]


def statements(limit=2):
    with CaptureQueriesContext(connection) as captured:
        claimed(limit)
    return len(captured.captured_queries)


def test_without_the_setting_not_one_statement_more_is_sent(settings):
    make_jobs(20)
    statements()  # prepares what a claim of two sends
    plain = statements()
    settings.JOBQUEUE = SETTING
    looking = statements()
    between = statements()
    settings.JOBQUEUE = {}
    assert (statements(), between) == (plain, plain)
    # Where a claim is one statement, the one that looks is a transaction all the same.
    steps = 3 if vendor("default").has_update_returning else 0
    assert looking - steps == plain + 3, "lowest level, its oldest job, the next level"


@pytest.mark.parametrize("value", [0, -1, "5m", True])
def test_a_value_that_is_no_positive_number_of_seconds_is_refused(value):
    from jobqueue.conf import read

    assert "STARVE_SECONDS" in read({"QUEUES": {"q": {"STARVE_SECONDS": value}}})[1][0]
