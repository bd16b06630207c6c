"""The auction under fire: a rule across rows, with every lock there is."""

from __future__ import annotations

import json
import os

import pytest

from tests.demo.helpers import manage, migrate
from tests.marks import committed
from tests.proofs.figures import FULL
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.timeout(600)]


@pytest.mark.skipif(not FULL, reason="make prove ISSUE=locks; a short race is in tests/demo")
def test_the_rules_of_the_auction_hold_under_every_lock_that_claims_it(redis_url, figure):
    """The auction: 16 processes, 10 s per strategy, the rules looked at after every commit."""
    migrate("auction")
    options = ["--processes", "16", "--seconds", os.environ.get("JOBQUEUE_PROVE_SECONDS", "10s"), "--json", "-v0"]
    done = manage("race_auction", *options, redis_url=redis_url, timeout_seconds=400)
    assert done.returncode == 0, done.stderr
    verdicts = json.loads(done.stdout)["strategies"]
    for verdict in verdicts:
        said = verdict["not_run"] or f"{verdict['verdict']}, {verdict['per_second']:.0f} commits/s"
        figure(verdict["strategy"], said)
    ran = {verdict["strategy"]: verdict for verdict in verdicts if not verdict["not_run"]}
    assert {"none", "mutex", "redis-lock"} <= set(ran)
    assert all(verdict["kept"] for verdict in ran.values() if verdict["safe"])
    assert not ran["none"]["kept"]
    if VENDOR != "sqlite":
        # No offer there yet, no row to lock.
        assert not ran["row-lock"]["kept"] or not ran["row-lock-index"]["kept"]
