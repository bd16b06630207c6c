"""database_slow: a round trip, or the read of a claim, takes longer than its limit."""

import time

import pytest
from django.db import connections

from jobqueue.explain import database, explain_backlog, explain_job, explain_queue
from tests.explain.broken import SlowProxy
from tests.explain.helpers import checked, codes, codes_here, first, of_job, of_queue
from tests.factories import claim_one, make_job
from tests.marks import committed, on_a_wire
from tests.proxy import cutting_proxy

MEASURES_ROUND_TRIPS = True


@committed
@on_a_wire
def test_a_database_far_away_is_the_first_reason_of_jobs_queues_and_the_backlog(worker):
    worker("w")
    make_job()
    running = claim_one(worker="w").job_id
    due = make_job()
    with cutting_proxy(kind=SlowProxy):
        short = [of_job(due), of_queue(), checked(explain_backlog())]
        whole = [
            explain_job(due, all_causes=True),
            explain_queue("q", all_causes=True),
            explain_backlog(all_causes=True),
        ]
        assert codes(of_job(running)) == ["running", "database_slow"]
        assert codes(explain_job(running, all_causes=True)) == ["running", "database_slow"]
    for found in short + whole:
        one = first(checked(found), "database_slow")
        assert one.evidence["round_trip_ms"] > one.evidence["round_trip_limit_ms"] == 100
        assert f"{one.evidence['round_trip_ms']:.0f} ms" in one.text
    for found in whole:
        assert found[0].evidence["claim_ms"] > 100
        assert found[0].evidence["claim_queue"] == "q"
        assert "workers_busy" in codes(found)
    for found in (of_job(due), of_queue(), checked(explain_backlog())):
        assert "database_slow" not in codes(found)


@pytest.mark.django_db
def test_a_slow_claim_is_told_with_its_queue(worker, monkeypatch):
    """Each read of a claim is late, as on an index that the server has not cleaned up; trivial statements are not."""
    worker("w")
    due = make_job()

    def late(execute, sql, params, many, context):
        if "LIMIT 10" in sql:
            time.sleep(0.6)
        return execute(sql, params, many, context)

    with connections["default"].execute_wrapper(late):
        answers = [of_job(due), of_queue(), checked(explain_backlog())]
    for found in answers:
        one = first(found, "database_slow")
        assert one.evidence["claim_ms"] > one.evidence["claim_limit_ms"] == 500
        assert one.evidence["round_trip_ms"] < 100
        assert "claim of queue q" in one.text


@pytest.mark.django_db
def test_commits_that_a_worker_finds_slow_are_told(worker):
    worker("w", troubles={"commit": {"ms": 600}})
    worker("slower", host="db2", queues="other", troubles={"commit": {"ms": 1250}})
    due = make_job()
    for found in (of_job(due), of_queue(), checked(explain_backlog())):
        one = first(found, "database_slow")
        assert (one.evidence["commit_ms"], one.evidence["commit_worker"]) == (1250, "slower")
        assert "1250 ms for worker slower on host db2" in one.text
        assert one.evidence["claim_ms"] < 500
        assert "workers_busy" in codes(found)


@pytest.mark.django_db
@pytest.mark.parametrize("troubles", [{"commit": 7}, {"commit": {"ms": "x"}}, {"commit": {}}, ["commit"], "commit"])
def test_what_is_no_figure_of_commits_is_no_reason(worker, troubles):
    worker("w", troubles=troubles)
    assert codes_here(of_job(make_job())) == ["workers_busy"]


@pytest.mark.django_db
def test_one_slow_answer_is_no_slow_database(worker, monkeypatch):
    worker("w")
    due, left = make_job(), [0.6, 0.6]

    def late(execute, sql, params, many, context):
        if left:
            time.sleep(left.pop())
        return execute(sql, params, many, context)

    with connections["default"].execute_wrapper(late):
        assert codes_here(of_job(due)) == ["workers_busy"]


@pytest.mark.django_db
def test_a_database_that_answers_is_no_reason_and_is_asked_one_thing_more(worker, monkeypatch):
    worker("w")
    # On a busy machine the process itself may be slow.
    monkeypatch.setattr(database, "ROUND_TRIP_SECONDS", 5.0)
    monkeypatch.setattr(database, "CLAIM_SECONDS", 5.0)
    ids = [make_job() for _ in range(20)]
    assert {tuple(codes_here(of_job(job_id))) for job_id in ids} == {("workers_busy",)}
    assert codes(checked(explain_backlog())) == ["workers_busy"]
