"""Collects what a call raises."""

from collections.abc import Callable

import pytest

from jobqueue.failures import classify
from tests.failures.real import Real, World


def raised(call: Callable[[], object]) -> BaseException:
    """What `call` raises, with its traceback."""
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("it raised nothing")


def check(real: Real, world: World) -> BaseException:
    """What `real` raises, which must be of its class and cause."""
    if real.needs:
        pytest.importorskip(real.needs, reason="the extra test has it")
    error = raised(lambda: real.call(world))
    assert classify(error) == real.cause, repr(error)
    assert real.kind in (None, type(error))
    return error
