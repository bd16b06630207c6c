"""A connection that is lost while the rules are read lets nothing start that is paused."""

import pytest

from jobqueue import flow
from jobqueue.gates.rules import forget_rules
from jobqueue.transitions import claim
from tests.factories import make_job
from tests.faults.conftest import killed_at
from tests.marks import committed
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no sessions to end")]


def test_a_paused_queue_starts_nothing_after_its_session_was_ended():
    make_job("q")
    flow.pause("q", reason="maintenance of the printer")
    for number in (1, 2):
        forget_rules()
        with killed_at(number):
            assert claim("q", worker="w") == []
    flow.resume("q")
    assert len(claim("q", worker="w")) == 1
