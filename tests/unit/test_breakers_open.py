"""The figure of circuit breakers that are not closed is that of now, also in a child whose jobs need no service."""

from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace

from jobqueue.gates.breaker_states import Known
from jobqueue.gates.rules import NO_RULES, Rules
from jobqueue.worker.child.loop import Loop


def test_a_child_tells_how_many_breakers_are_open_whenever_it_looks_at_the_rules(monkeypatch):
    loop = Loop.__new__(Loop)
    slot = SimpleNamespace(breakers_open=0)
    loop.child = SimpleNamespace(watched=nullcontext, using="default", slot=slot)
    loop.pool = SimpleNamespace(rules=NO_RULES)
    opened = Rules(breakers={"stripe": Known("open", datetime.now(UTC), False, None, None, None)})
    for found, number in ((opened, 1), (NO_RULES, 0)):
        monkeypatch.setattr("jobqueue.worker.child.loop.rules", lambda using, found=found: found)
        loop._look_at_rules()
        assert (loop.pool.rules, slot.breakers_open) == (found, number)
