"""A look at the queues that took long is not repeated at once, but one that has waited for something is."""

import pytest

from jobqueue.models import Job
from jobqueue.transitions import ack
from jobqueue.transitions.claiming import candidates, queue_memory
from jobqueue.worker.shared.queue_choice import parse
from tests.clocks import Clock
from tests.factories import claim_one, make_due, make_job
from tests.marks import finding

pytestmark = pytest.mark.django_db


@pytest.fixture
def clock(monkeypatch):
    """The poller's clock: it goes on by the seconds that each look takes."""
    made = Clock()
    monkeypatch.setattr(queue_memory.time, "monotonic", made)
    return made


@pytest.fixture
def take(clock, monkeypatch):
    """take(*seconds): the next looks take so long, one after another, and those behind them as long as the last."""
    times = {"heads": [0.0], "waiting_names": [0.0]}

    def slow(name, real):
        def look(*given, **named):
            found = real(*given, **named)
            clock.go(times[name].pop(0) if len(times[name]) > 1 else times[name][0])
            return found

        return look

    for name in times:
        monkeypatch.setattr(candidates, name, slow(name, getattr(candidates, name)))
    return lambda *seconds: times.update({name: list(seconds) for name in times})


def queues(selection):
    return [head.queue for head in selection.heads("default")]


def comes_back():
    """A job of a priority that the worker has not met, with an old run_at, as one that was reaped or released."""
    make_due(make_job("q", priority=7))


@finding("K-C5")
@pytest.mark.parametrize("words", ["q", "*"])
def test_after_one_look_that_has_waited_the_next_one_is_complete(words, take):
    selection = parse([words])
    assert queues(selection) == []
    take(1.5, 0.001)
    assert queues(selection) == []
    comes_back()
    assert queues(selection) == ["q"]


@pytest.mark.parametrize("words", ["q", "*"])
def test_looks_that_take_long_again_and_again_are_not_repeated_at_once(words, take, clock):
    selection = parse([words])
    take(0.5)
    assert queues(selection) == queues(selection) == []
    comes_back()
    assert queues(selection) == []
    clock.go(5.1)
    assert queues(selection) == ["q"]


def test_looks_at_more_queues_than_are_remembered_are_not_repeated_at_once_either(take, monkeypatch):
    monkeypatch.setattr(queue_memory, "_QUEUES_MAX", 2)
    for name in "abcd":
        make_job(name)
    selection = parse([*"abcd"])
    take(0.5)
    queues(selection)
    queues(selection)
    make_due(make_job("a", priority=7))
    assert {head.queue: head.level for head in selection.heads("default")}["a"] == 0


@finding("K-C5")
def test_names_are_looked_up_again_after_one_look_that_has_waited(take):
    selection = parse(["*"])
    selection.names("default")
    take(1.5, 0.001)
    selection.names("default")
    make_job("new")
    assert selection.names("default") == ["new"]


def test_a_look_for_newer_jobs_alone_finds_those_of_all_priorities_that_were_met(take, clock):
    selection, high, low = parse(["q"]), make_job("q", priority=7), make_job("q", priority=3)
    take(0.5)

    def level():
        return next((head.level for head in selection.heads("default")), None)

    # The second look was slow, too: from now on only newer jobs are looked for.
    assert [level(), level(), level()] == [7, 7, 7]
    ack(claim_one())
    assert [level(), level()] == [3, 3]
    clock.go(5.1)
    assert level() == 3, "a complete look"
    make_job("q", priority=7)
    assert level() == 7
    assert {claim_one().job_id, claim_one().job_id} > {low}
    assert level() is None
    make_job("q", priority=3)
    make_job("q", priority=7)
    assert level() == 7
    assert Job.objects.get(pk=high).status == Job.Status.DONE


def test_a_queue_without_tokens_is_passed_over_until_it_has_some_and_not_for_longer_than_a_second(clock):
    memory, limit = queue_memory.QueueMemory(), queue_memory.LOOK_SECONDS
    memory.shut(limit / 4)
    assert memory.shut_until == clock() + limit / 4
    memory.shut(3600.0)
    assert memory.shut_until == clock() + limit, "the rate may have been changed"
