"""The circuit breakers of dependencies: opened and closed by hand, and all of them, for the admin."""

from __future__ import annotations

from datetime import datetime

from jobqueue.base.validation import check_instant, check_reason
from jobqueue.conf import load
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.clock import Selected, UtcNow, read_now
from jobqueue.exceptions import InvalidValue
from jobqueue.failures.dependencies import check_dependency
from jobqueue.gates import breaker as machine
from jobqueue.gates import declared
from jobqueue.gates.rules import State, forget_rules, is_over
from jobqueue.models import BreakerState


class Breaker:
    """The circuit breaker of one dependency, shared by all workers."""

    def __init__(self, dependency: str, using: str) -> None:
        self.dependency, self._using = dependency, using

    @property
    def state(self) -> str:
        """ "closed", "open" or "half-open" (a probe runs), read from the database at each access."""
        with explain_missing_table(self._using):
            known = machine.breaker_of(self.dependency, self._using)
        return str(known.state if known is not None else State.CLOSED)

    def open(self, reason: str, until: datetime | None = None) -> None:
        """Start no job of the dependency until close(), or `until` (aware); then the breaker is closed.

        Jobs that run go on, and no probes are made. In the caller's transaction; in effect within a second of its
        commit, in all processes. Raises InvalidValue, InvalidType; then nothing is written.
        """
        words = check_reason(reason)
        if until is not None and check_instant(until, "until") <= read_now(self._using):
            raise InvalidValue(f"until={until.isoformat()} has passed. Nothing was written; give a later instant.")
        machine.set_by_hand(self.dependency, reason=words, until=until, using=self._using)
        forget_rules()
        machine.announce(self.dependency, State.OPEN, words, self._using)

    def close(self) -> bool:
        """Close it, whoever has opened it, and start the jobs that wait for it; False if it was closed."""
        # One whose time is over has been closed since then: that is written, and told, first.
        machine.breaker_of(self.dependency, self._using)
        closed = machine.close(self.dependency, reason="closed by hand", using=self._using)
        forget_rules()
        if closed:
            machine.announce(self.dependency, State.CLOSED, "closed by hand", self._using)
        return closed

    def __repr__(self) -> str:
        return f"<Breaker of {self.dependency}>"


def breaker(dependency: str, *, using: str | None = None) -> Breaker:
    """The circuit breaker of `dependency`: `.state`, `.open(reason, until=None)` and `.close()`.

    A dependency is a name as in @task(dependency=...); one that no task has is allowed. Raises InvalidValue,
    InvalidType.
    """
    return Breaker(check_dependency(dependency), alias_of(using))


def breaker_facts(*, using: str, name: str | None = None) -> list[BreakerState]:
    """All breakers by name, those that are not closed first; or the one of `name`. Not to be saved.

    Of the table, of DEPENDENCIES in the settings, and of the tasks that this process has imported. One without a row,
    or that was opened by hand until a time that has passed, is closed.
    """
    rows = BreakerState.objects.using(using).annotate(now=Selected(UtcNow()))
    with explain_missing_table(using):
        found = list(rows if name is None else rows.filter(pk=name))
    known = {row.dependency: BreakerState(dependency=row.dependency) if is_over(row, row.now) else row for row in found}
    names = {*known, *load().dependencies, *declared.dependencies()} if name is None else {name}
    everything = [known.get(one) or BreakerState(dependency=one) for one in names]
    for one in everything:
        one.reason = "" if one.state == State.CLOSED else one.reason
    return sorted(everything, key=lambda one: (one.state == "closed", one.dependency))
