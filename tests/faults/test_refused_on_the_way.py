"""A proxy that takes no long statements cuts the connection for them: only what is too long is given up."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from django.db import OperationalError, connections

from jobqueue import transitions
from jobqueue.db.outage import Outage
from jobqueue.exceptions import DatabaseBusy
from jobqueue.models import Job, JobAttempt
from jobqueue.transitions import claim
from jobqueue.transitions.acking import encode_result
from jobqueue.transitions.leases import held
from jobqueue.worker.child.outcomes import settle_alone
from jobqueue.worker.child.settler import Settler
from jobqueue.worker.run.attempt import Ending, Outcome
from tests.factories import job, make_jobs, state
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.proxy import CuttingProxy, cutting_proxy
from tests.races.actors import holding
from tests.settings import VENDOR
from tests.unit.test_settler import Pool, child_with

pytestmark = [
    committed,
    pytest.mark.skipif(VENDOR == "sqlite", reason="nothing stands between SQLite and its file"),
]
LONGEST = 50_000
#: what a driver says of a lost connection
GONE = ("the connection is lost",) if VENDOR == "postgres" else (2013, "Lost connection")
LONG = "x" * 2 * LONGEST


class Away(Outage):
    """Of the settler's thread, which does not end: its connection is closed as soon as all is written."""

    def over(self):
        super().over()
        connections.close_all()


def outcomes_of(*results, **more):
    make_jobs(len(results))
    leases = sorted(claim("q", len(results), worker="w"), key=lambda lease: lease.job_id)
    return [
        Outcome(lease, Ending.OK, 0.0, result=encode_result(result), **more)
        for lease, result in zip(leases, results, strict=True)
    ]


@contextmanager
def settling(*outcomes, kind=CuttingProxy):
    """A settler that writes these through a proxy that takes no long statements: (proxy, its outage, its pool)."""
    pool, away = Pool(), Away("w", "write outcomes", "default")
    with cutting_proxy(kind=kind) as proxy:
        child = child_with(pool, away)
        proxy.longest, pool.slot = LONGEST, child.slot
        settler = Settler(child, threads=1)
        pool.ends.put(*outcomes)
        yield proxy, away, pool
        wait_until(lambda: not settler.unwritten and len(pool.written) >= len(outcomes), what="all ends")


def states(outcomes):
    return [state(outcome.lease.job_id) for outcome in outcomes]


@finding("A12")
@pytest.mark.parametrize("ack_each", [False, True], ids=["together", "one by one"])
def test_a_result_that_is_cut_off_on_the_way_ends_its_job_and_no_other(ack_each):
    outcomes = outcomes_of("short", LONG, "short too", None, LONG, ack_each=ack_each)
    with settling(*outcomes) as (proxy, _, pool):
        wait_until(lambda: len(pool.written) == 5, what="five free places")
        assert proxy.refused
        assert states(outcomes) == ["DONE", "FAILED", "DONE", "DONE", "FAILED"]
        # And what ends from now on is written at once.
        before = proxy.refused
        (later,) = outcomes_of("later")
        pool.ends.put(later)
        # Counted, and its place free: that comes after the commit.
        wait_until(lambda: len(pool.written) == 6, what="the end of a later one")
        assert state(later.lease.job_id) == "DONE"
        assert proxy.refused == before
    failed = job(outcomes[1].lease.job_id)
    assert (failed.cause, failed.attempts) == ("format", 1)
    assert "could not be stored" in failed.last_error
    assert (pool.slot.finished, pool.slot.failed, pool.slot.lost) == (6, 2, 0)


@finding("A12")
def test_a_failure_whose_words_are_cut_off_on_the_way_is_charged_in_other_words():
    first, second = outcomes_of(None, None)
    first.ending, first.error = Ending.FAILED, ValueError("x" * (LONGEST + 5_000))
    with settling(first, second):
        wait_until(lambda: states([first, second]) == ["READY", "DONE"], what="both ends")
    assert JobAttempt.objects.filter(job_id=first.lease.job_id).count() == 1
    assert "could not be stored" in job(first.lease.job_id).last_error


def test_while_the_database_is_away_nothing_is_given_up(caplog):
    """Not even what is long: it is written when the database is back. Its error is logged, and told with the stacks."""
    outcomes = outcomes_of("short", LONG)
    with settling(*outcomes) as (proxy, away, _):
        proxy.longest = 0
        wait_until(lambda: away.failures >= 4, what="some tries")
        assert away.code
        proxy.longest = None
    (began,) = [line for line in caplog.messages if "w cannot write outcomes" in line]
    assert "the database is unreachable (" in began
    assert "None" not in began
    assert states(outcomes) == ["DONE", "DONE"]
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


class Forgiving(CuttingProxy):
    """Refuses it each time that others go with it, and once alone: by then two sessions have tried it three times."""

    def refuses(self, asked):
        return super().refuses(asked) and self.refused < 6


def test_what_was_cut_off_for_a_while_is_written_all_the_same():
    outcomes = outcomes_of("short", LONG)
    with settling(*outcomes, kind=Forgiving) as (proxy, _, _):
        wait_until(lambda: states(outcomes) == ["DONE", "DONE"], what="both ends")
        assert proxy.refused == 6
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


@finding("A12")
def test_one_whose_row_is_locked_too_waits_for_that_alone():
    first, second = outcomes_of(LONG, "short")
    with settling() as (_, _, pool):
        with holding(lambda: list(held(first.lease).select_for_update())):
            pool.ends.put(first, second)
            wait_until(
                lambda: first.row_locked and state(second.lease.job_id) == "DONE", what="the end of the other one"
            )
            assert state(first.lease.job_id) == "PROCESSING"
        wait_until(lambda: state(first.lease.job_id) == "FAILED", what="its end")


@pytest.mark.parametrize(
    ("result", "error"),
    [(LONG, DatabaseBusy("the disk is full")), (None, OperationalError(*GONE))],
    ids=["busy", "short"],
)
def test_what_a_database_that_answers_refuses_or_has_nothing_to_leave_out_is_kept(monkeypatch, result, error):
    def refuse(*_, **__):
        raise error

    (outcome,) = outcomes_of(result)
    monkeypatch.setattr(transitions, "ack_many", refuse)
    assert settle_alone(outcome, SimpleNamespace(finished=0, failed=0, lost=0)) == [outcome]
    assert state(outcome.lease.job_id) == "PROCESSING"
    monkeypatch.undo()
    assert settle_alone(outcome, SimpleNamespace(finished=0, failed=0, lost=0)) == []
    assert state(outcome.lease.job_id) == "DONE"
