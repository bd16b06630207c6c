"""Two works on one thing, in each order of steps: the second comes at each moment of the first in turn."""

from tests.races.actors import Actor, Stopped


def walk(prepare, first, second, check, *, stride=1):
    """The moments at which it was tried.

    At each of them: prepare() gives what `first` and `second` get; `first` stops there, `second` runs to its end or
    until it waits for a lock, and both end. Then check(given, outcomes).
    """
    moments = 0
    while True:
        given = prepare()
        # Odd ones are those before a statement: the one after it is the same for others.
        stopping = Stopped(1 + 2 * stride * moments, lambda: first(given))  # noqa: B023  at once
        other = Actor(second, given)
        other.is_blocked()
        stopping.go_on()
        outcomes = stopping.outcome(), other.outcome()
        wrong = [outcome for outcome in outcomes if isinstance(outcome, AssertionError)]
        assert not wrong, wrong
        check(given, outcomes)
        if not stopping.stopped:
            return moments
        moments += 1
