"""The monitor sees what operators change, and lets gates be looked at again that stale claims have closed."""

import pytest

from jobqueue import flow
from jobqueue.gates import timing
from jobqueue.gates.rules import forget_rules, rules
from jobqueue.gates.timing import Changes, any_in_effect
from tests.gates import jobs
from tests.gates.helpers import add, open_in_time, taken, waiting

pytestmark = pytest.mark.django_db


@pytest.fixture
def seen():
    """The changes since the test began."""
    made = Changes("default")
    made.look()
    return made


def test_nothing_has_changed_where_nobody_has_written(seen):
    assert seen.look() is False


def test_each_control_is_a_change(seen, limited):
    work = limited(jobs.calls, dependency="stripe")
    for control in (
        lambda: flow.pause("q", reason="r"),
        lambda: flow.resume("q"),
        lambda: flow.pause("q", task=work, reason="r"),
        lambda: flow.resume("q", task=work),
        lambda: flow.set_limit("q", concurrency=3),
        lambda: flow.set_limit("q", task=work, rate="3/s"),
        lambda: flow.clear_limit("q", task=work),
        lambda: flow.breaker("stripe").open("r"),
        lambda: flow.breaker("stripe").close(),
    ):
        control()
        assert seen.look() is True
        assert seen.look() is False


def test_what_is_in_effect_is_told_from_what_is_over(limited):
    def in_effect():
        forget_rules()
        return any_in_effect(rules("default"))

    work = limited()
    assert not in_effect()
    for begin, end in (
        (lambda: flow.pause("q", reason="r"), lambda: flow.resume("q")),
        (lambda: flow.pause("q", task=work, reason="r"), lambda: flow.resume("q", task=work)),
        (lambda: flow.set_limit("q", rate="3/s"), lambda: flow.clear_limit("q")),
        (lambda: flow.set_limit("q", task=work, concurrency=3), lambda: flow.clear_limit("q", task=work)),
        (lambda: flow.breaker("stripe").open("r"), lambda: flow.breaker("stripe").close()),
    ):
        begin()
        assert in_effect()
        end()
        assert not in_effect()


def test_a_limit_in_the_settings_is_in_effect(settings):
    settings.JOBQUEUE = {"QUEUES": {"q": {"CONCURRENCY": 3}}}
    assert any_in_effect(rules("default"))


class TestAClaimByTheRulesOfBefore:
    """It closes again what was opened after a change; the gates are looked at again soon."""

    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch):
        monkeypatch.setattr(timing, "AGAIN_SECONDS", (0.0,))

    @pytest.mark.parametrize("kind", ["a raised limit", "a limit that is gone", "a pause", "a rate", "a breaker"])
    def test_delays_nothing(self, kind, limited, seen, monkeypatch):
        work = limited(jobs.calls, dependency="stripe")
        begin, end = {
            "a raised limit": (
                lambda: flow.set_limit("q", task=work, concurrency=1),
                lambda: flow.set_limit("q", task=work, concurrency=9),
            ),
            "a limit that is gone": (
                lambda: flow.set_limit("q", task=work, concurrency=1),
                lambda: flow.clear_limit("q", task=work),
            ),
            "a pause": (lambda: flow.pause("q", task=work, reason="r"), lambda: flow.resume("q", task=work)),
            "a rate": (
                lambda: flow.set_limit("q", task=work, rate="1/h"),
                lambda: flow.set_limit("q", task=work, rate=None),
            ),
            "a breaker": (lambda: flow.breaker("stripe").open("r"), lambda: flow.breaker("stripe").close()),
        }[kind]
        ids = add(4, work)
        begin()
        seen.look()
        started = taken()
        assert taken() == []
        left = [one for one in ids if one not in started]
        old = rules("default")
        end()
        open_in_time()
        with monkeypatch.context() as patched:
            patched.setattr("jobqueue.gates.rules._cache.fresh", lambda using: old)
            assert taken() == []
            assert waiting() == left
        seen.look()
        seen.open_again()
        open_in_time()
        assert taken() == left
