"""Which exception of a chain or group decides, and what no exception can break."""

import pytest

from jobqueue.exceptions import HardTimeout, JobLost, MissingKey, PayloadError, SoftTimeout
from jobqueue.failures import classify, describe, fingerprint, summary

FULL, REFUSED, WRONG = OSError(28, "disk full"), ConnectionRefusedError("no"), ValueError("x")


class Own(Exception):
    """An exception of a project."""


def chained(outer, cause=None, context=None, *, suppress=False):
    """`outer`, raised from `cause` or while `context` was handled."""
    outer.__context__ = context
    if cause is not None or suppress:
        outer.__cause__ = cause
    return outer


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (chained(Own(), REFUSED), "dependency"),
        (chained(RuntimeError(), REFUSED), "dependency"),
        (chained(OSError("x"), FULL), "resource"),
        (chained(Own(), None, WRONG), "data"),
        (chained(Own(), REFUSED, WRONG), "dependency"),
        (chained(Own(), None, WRONG, suppress=True), "unknown"),
        (chained(Own(), chained(Own(), chained(Own(), None, FULL))), "resource"),
        (chained(ValueError(), REFUSED), "data"),
        (chained(Own(), chained(KeyError(), REFUSED)), "data"),
        (chained(SystemExit(1), None, REFUSED), "dependency"),
    ],
)
def test_the_outermost_exception_that_a_rule_names_decides(error, cause):
    assert classify(error) == cause


@pytest.mark.parametrize(
    ("members", "cause"),
    [
        ([WRONG, WRONG, FULL], "data"),
        ([WRONG, REFUSED, FULL], "resource"),
        ([WRONG, REFUSED], "dependency"),
        ([WRONG, Own(), Own(), Own()], "data"),
        ([Own()], "unknown"),
        ([ExceptionGroup("in", [REFUSED, REFUSED]), WRONG], "dependency"),
        ([chained(Own(), REFUSED), WRONG, chained(Own(), REFUSED)], "dependency"),
        ([SoftTimeout("x"), SoftTimeout("x"), WRONG], "timeout"),
    ],
)
def test_a_group_has_its_most_frequent_cause(members, cause):
    assert classify(ExceptionGroup("g", members)) == cause
    assert classify(chained(Own(), ExceptionGroup("g", members))) == cause


def test_a_group_that_says_nothing_defers_like_others():
    assert classify(chained(ExceptionGroup("g", [Own()]), REFUSED)) == "dependency"


def test_circles_end():
    first, second = Own(), Own()
    first.__cause__, second.__cause__ = second, first
    first.__context__ = first
    assert classify(first) == "unknown"


def test_long_chains_and_deep_groups_are_looked_at_for_a_moment_only():
    error = WRONG
    for _ in range(100_000):
        error = chained(Own(), error)
    assert classify(error) == "unknown"
    group = WRONG
    for _ in range(10_000):
        group = ExceptionGroup("g", [group])
    assert classify(group) == "unknown"
    assert classify(ExceptionGroup("g", [Own()] * 100_000)) == "unknown"


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (JobLost("x"), "lost"),
        (SoftTimeout("x"), "timeout"),
        (HardTimeout("x"), "timeout"),
        (TimeoutError(), "dependency"),
        (PayloadError("x"), "format"),
        (MissingKey("x"), "format"),
        (KeyError("x"), "data"),
        ("text", "unknown"),
        (Own(), "unknown"),
    ],
)
def test_only_our_own_limits_are_a_timeout_and_only_the_payload_a_format(error, cause):
    assert classify(error) == cause


def trap(self, *args):
    raise SystemExit("gotcha")


HOSTILE = {
    "str": {"__str__": trap, "__repr__": trap},
    "every attribute": {"__getattribute__": trap},
    "chain": dict.fromkeys(("__cause__", "__context__", "__suppress_context__", "__traceback__"), property(trap)),
    "class": {"__class__": property(trap)},
    "notes": {"__notes__": property(trap)},
    "equality": {"__eq__": trap, "__hash__": trap, "__bool__": trap},
    "errno": {"errno": property(trap), "args": property(trap)},
    "members": {"exceptions": property(trap)},
}


@pytest.mark.parametrize("base", [Exception, OSError, ValueError, ExceptionGroup])
@pytest.mark.parametrize("name", HOSTILE)
def test_an_exception_whose_attributes_raise_is_classed_and_grouped_all_the_same(name, base):
    made = type("Hostile", (base,), dict(HOSTILE[name]))
    error = made("g", [REFUSED]) if base is ExceptionGroup else made("x")
    expected = {Exception: "dependency", OSError: "dependency", ValueError: "data", ExceptionGroup: "dependency"}
    assert classify(chained(Own(), error)) in ("unknown", expected[base])
    assert len(fingerprint(error, task="t", queue="q")) == 16
    assert describe(error)
    assert summary(error)


def test_a_class_whose_names_raise_is_classed_all_the_same():
    class Meta(type):
        __getattribute__ = trap

    made = Meta("Hostile", (ValueError,), {})
    assert classify(made("x")) == "data"
    assert len(fingerprint(made("x"), task="t", queue="q")) == 16


def test_a_response_whose_status_raises_leaves_the_rule_of_the_base_class():
    base = type("RequestException", (OSError,), {"__module__": "requests.exceptions"})
    made = type("HTTPError", (base,), {"__module__": "requests.exceptions", "response": property(trap)})
    assert classify(made("x")) == "dependency"
