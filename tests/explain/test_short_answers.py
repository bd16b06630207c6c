"""Of a database that answers slowly, explanations tell what fits into a second, and say what they did not look at."""

import time
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import connections

from jobqueue import enqueue, flow
from jobqueue.db.clock import UtcNowPlus
from jobqueue.explain import database, explain_backlog, explain_job, explain_queue, workers
from jobqueue.explain.explanation import CODES
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import HELD_GATE, HELD_REASON
from tests.cli.helpers import printed, read_json
from tests.explain.broken import LATE_SECONDS, SlowProxy
from tests.explain.helpers import checked, codes, codes_here, first, named, of_job, of_queue
from tests.factories import claim_one, make_in_state, make_job, now
from tests.marks import committed, on_a_wire
from tests.proxy import cutting_proxy

MEASURES_ROUND_TRIPS = True
HOUR = timedelta(hours=1)
#: after the first three, more statements do not fit into a second, and four are enough for what stops a job for certain
FEW = 4
#: first, two more that are trivial, and then so many as fit at 0.12 s each
STATEMENTS_MAX = 6


@contextmanager
def late_statements():
    """Each statement takes LATE_SECONDS longer; gives the list of those that were sent."""
    sent = []

    def late(execute, sql, params, many, context):
        sent.append(sql)
        time.sleep(LATE_SECONDS)
        return execute(sql, params, many, context)

    with connections["default"].execute_wrapper(late):
        yield sent


class Clock:
    """It goes on by a second with each statement, and stands still otherwise."""

    def __init__(self):
        self._seconds = 0

    def time(self):
        return self._seconds

    def tick(self, execute, sql, params, many, context):
        self._seconds += 1
        return execute(sql, params, many, context)


@pytest.fixture
def short_of_time(monkeypatch):
    """short_of_time(statements): each answer counts as slow, and so many statements fit after the first three."""
    clock = Clock()

    def make(statements):
        monkeypatch.setattr(database, "perf_counter", clock.time)
        monkeypatch.setattr(database, "ROUND_TRIP_SECONDS", 0.5)
        monkeypatch.setattr(database, "ANSWER_SECONDS", database.TRIES + statements)

    with connections["default"].execute_wrapper(clock.tick):
        yield make


def all_three(job_id):
    """The answers about the job, its queue and the backlog."""
    return [of_job(job_id), of_queue(), checked(explain_backlog())]


class CountingProxy(SlowProxy):
    """A slow network that counts the answers."""

    answers = 0

    def answered(self, data):
        self.answers += self._is_asked
        return super().answered(data)


@committed
@on_a_wire
def test_the_answer_needs_no_more_round_trips_than_fit_into_a_second(worker):
    worker("w")
    due = make_job()
    with cutting_proxy(kind=CountingProxy) as proxy:
        connections["default"].ensure_connection()
        for explain, subject in ((explain_job, [due]), (explain_queue, ["q"]), (explain_backlog, [])):
            before = proxy.answers
            found = explain(*subject)
            assert 3 <= proxy.answers - before <= STATEMENTS_MAX
            assert first(checked(found), "database_slow").evidence["looked_at_all"] is False


@pytest.mark.django_db
def test_no_more_statements_are_sent_than_fit(worker):
    worker("w")
    due = make_job()
    for explain, subject in ((explain_job, [due]), (explain_queue, ["q"]), (explain_backlog, [])):
        with late_statements() as sent:
            one = first(checked(explain(*subject)), "database_slow")
        assert 3 <= len(sent) <= STATEMENTS_MAX, sent
        assert one.evidence["looked_at_all"] is False
        assert "workers_busy" in one.evidence["not_looked_at"]
        assert "were not looked at" in one.text
        assert "jobs explain" in one.next_step
        assert "--all-causes" in one.next_step


@pytest.mark.django_db
def test_all_causes_are_looked_at_when_that_is_asked_for(worker):
    worker("w")
    due = make_job()
    with late_statements():
        answers = [
            explain_job(due, all_causes=True),
            explain_queue("q", all_causes=True),
            explain_backlog(all_causes=True),
        ]
    for found in answers:
        one = first(checked(found), "database_slow")
        assert (one.evidence["looked_at_all"], one.evidence["not_looked_at"]) == (True, [])
        assert "not looked at" not in one.text
        assert one.evidence["claim_ms"] > 100
        assert "workers_busy" in codes(found)


@pytest.mark.django_db
def test_what_stops_a_job_for_certain_is_still_told_first(worker, short_of_time):
    due = make_job()
    short_of_time(FEW)
    assert codes_here(of_job(due)) == ["no_worker", "database_slow"]
    assert codes(of_queue()) == ["no_worker", "database_slow"]
    assert codes(checked(explain_backlog())) == ["no_worker", "database_slow"]
    worker("w")
    flow.pause("q", reason="the mail server moves")
    assert codes_here(of_job(due)) == ["paused", "database_slow"]
    assert codes(of_queue()) == ["paused", "database_slow"]
    flow.resume("q")
    flow.drain("q", reason="the last day")
    assert codes_here(of_job(due)) == ["database_slow", "draining"]
    assert codes(of_queue()) == ["database_slow", "draining"]


@pytest.mark.django_db
def test_what_the_row_of_a_job_tells_needs_no_time(worker, short_of_time):
    worker("w")
    done, runs = make_in_state("DONE"), make_in_state("PROCESSING")
    delayed, over = make_job(run_at=now() + HOUR), make_job(expires_at=UtcNowPlus(-1))
    held = make_job(gate=HELD_GATE, wait_reason=HELD_REASON)
    child = make_job(gate=PARENTS_GATE, wait_reason="parents")
    short_of_time(0)
    assert codes(of_job(done)) == ["ended"], "a slow database keeps it from nothing"
    assert codes(of_job(runs)) == ["running", "database_slow"]
    for job_id, code in ((delayed, "not_due"), (over, "expired"), (held, "held"), (child, "parents")):
        assert codes_here(of_job(job_id)) == [code, "database_slow"]
    one = named(of_job(child), "parents")
    assert "was not looked at" in one.text
    assert "--all-causes" in one.next_step


@pytest.mark.django_db
def test_a_job_behind_its_key_is_told_by_its_wait_reason(worker, short_of_time):
    worker("w")
    enqueue("q", 1, ordering_key="k")
    behind = enqueue("q", 2, ordering_key="k")
    claim_one(worker="w")
    whole = first(of_job(behind), "key")
    short_of_time(0)
    one = first(of_job(behind), "key")
    assert "waits for earlier jobs with its ordering key" in one.text
    assert one.text != whole.text
    assert "key" in named(of_job(behind), "database_slow").evidence["not_looked_at"]


@pytest.mark.django_db
def test_what_was_not_looked_at_is_named_in_the_order_of_the_codes(worker, short_of_time):
    worker("w")
    due = make_job()
    short_of_time(FEW)
    some = [named(found, "database_slow").evidence["not_looked_at"] for found in all_three(due)]
    short_of_time(0)
    none = [named(found, "database_slow").evidence["not_looked_at"] for found in all_three(due)]
    for less, more in zip(some, none, strict=True):
        assert less == [code for code in CODES if code in less]
        assert more == [code for code in CODES if code in more]
        assert {*more} - {*less} >= {"read_only", "host_exhausted", "clock_skew"}
    assert {"paused", "draining"} <= {*none[0]} & {*none[1]}
    short_of_time(12)
    more = named(checked(explain_backlog()), "database_slow").evidence["not_looked_at"]
    assert "row_lock" in {*none[2]} - {*more}


@pytest.mark.django_db
def test_a_held_job_needs_no_more_than_fits_so_all_was_looked_at(worker, short_of_time):
    worker("w")
    held = make_job(gate=HELD_GATE, wait_reason=HELD_REASON)
    short_of_time(FEW)
    one = named(of_job(held), "database_slow")
    assert (one.evidence["looked_at_all"], one.evidence["not_looked_at"]) == (True, [])
    assert "not looked at" not in one.text


@pytest.mark.django_db
def test_jobs_that_were_not_counted_are_not_said_to_be_none(worker, short_of_time):
    worker("w")
    make_job()
    short_of_time(FEW)
    evidence = first(checked(explain_backlog()), "database_slow").evidence
    assert (evidence["waiting_jobs"], evidence["waiting_capped"]) == (None, True)
    assert (evidence["queues"], evidence["queues_total"], evidence["queues_cut"]) == ([], None, True)


@pytest.mark.django_db
def test_workers_tell_commits_that_are_slow_in_a_short_answer_too(worker, short_of_time):
    worker("w", troubles={"commit": {"ms": 600}}, clock_ahead_seconds=90.0)
    due = make_job()
    short_of_time(FEW)
    for found in all_three(due):
        assert first(found, "database_slow").evidence["commit_ms"] == 600
        assert codes_here(found)[-1] == "clock_skew"


@pytest.mark.django_db
def test_workers_that_are_all_short_of_something_come_before_the_slow_database(worker, short_of_time):
    lacks = {"memory": {"free": 2**20, "limit": 2**30, "of": "host"}}
    worker("w", troubles=lacks)
    due = make_job()
    short_of_time(FEW)
    assert codes_here(of_job(due)) == ["host_exhausted", "database_slow"]
    worker("v", host="other")
    assert codes_here(of_job(due)) == ["database_slow", "host_exhausted"]
    assert codes(of_queue()) == codes(checked(explain_backlog())) == ["database_slow", "host_exhausted"]


@committed
def test_the_command_asks_no_workers_after_a_short_answer_and_all_causes_asks_them(worker, short_of_time, monkeypatch):
    asked = []
    monkeypatch.setattr(workers, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(workers.worker_rows, "ask_stacks", lambda names, *, using: asked.append(names))
    monkeypatch.setattr(workers.worker_rows, "stacks_asked", lambda names, *, using: list(names))
    worker("w")
    make_job()
    runs = claim_one(worker="w").job_id
    short_of_time(FEW)
    assert [one["code"] for one in read_json("explain", str(runs))["reasons"]] == ["running", "database_slow"]
    assert "  looked_at_all        no\n" in printed("explain")
    assert asked == []
    found = read_json("explain", str(runs), "--all-causes")["reasons"]
    assert [one["code"] for one in found] == ["running", "database_slow"]
    assert found[1]["evidence"]["looked_at_all"] is True
    assert asked == [["w"]]


@pytest.mark.django_db
def test_a_fast_database_is_asked_everything_whatever_the_time(worker, monkeypatch):
    worker("w")
    monkeypatch.setattr(database, "ROUND_TRIP_SECONDS", 60.0)
    monkeypatch.setattr(database, "ANSWER_SECONDS", 0.0)
    for found in all_three(make_job()):
        assert codes_here(found) == ["workers_busy"]


@pytest.mark.django_db
def test_three_statements_are_measured_before_the_database_is_called_slow(worker):
    worker("w")
    due = make_job()
    with late_statements() as sent:
        assert first(of_job(due), "database_slow").evidence["round_trip_ms"] > 100
    assert [sql.strip() for sql in sent[1:3]] == ["SELECT 1", "SELECT 1"]
    assert "SELECT 1" not in sent[3:]
