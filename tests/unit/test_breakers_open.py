"""The figure of circuit breakers that are not closed is that of now, also in a child whose jobs need no service."""

from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace

from jobqueue.gates.rules import NO_RULES, OpenBreaker, Rules
from jobqueue.worker.child.loop import Loop


def made():
    loop = Loop.__new__(Loop)
    loop.slot = SimpleNamespace(breakers_open=0, ruled=0)
    header = SimpleNamespace(rules_turn=0)
    loop.child = SimpleNamespace(watched=nullcontext, using="default", slot=loop.slot, header=header)
    loop.pool, loop._rules, loop._rules_turn = SimpleNamespace(rules=NO_RULES), None, 0
    return loop


def test_a_child_tells_how_many_breakers_are_open_whenever_it_looks_at_the_rules(monkeypatch):
    loop = made()
    opened = Rules(breakers={"stripe": OpenBreaker("open", datetime.now(UTC), False, None, None, None)})
    for found, number in ((opened, 1), (NO_RULES, 0)):
        monkeypatch.setattr("jobqueue.worker.child.loop.rules", lambda using, found=found: found)
        loop._look_at_rules()
        assert (loop.pool.rules, loop.slot.breakers_open) == (found, number)
        assert loop.slot.ruled == number


def test_a_child_reads_the_rules_again_when_the_monitor_has_seen_a_change(monkeypatch):
    loop, forgotten = made(), []
    monkeypatch.setattr("jobqueue.worker.child.loop.rules", lambda using: NO_RULES)
    monkeypatch.setattr("jobqueue.worker.child.loop.forget_rules", lambda: forgotten.append(True))
    loop._look_at_rules()
    assert forgotten == []
    loop.child.header.rules_turn = 1
    loop._look_at_rules()
    loop._look_at_rules()
    assert forgotten == [True]
