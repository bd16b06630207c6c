"""The demo's two races: serial numbers that are sold once, and a rule across rows that holds, with every lock there is.

Every strategy is a row of docs/proof/demo.md. Serial numbers: `duplicates` and `unsold` are numbers, counted from the
answers that buyers got; `overtaken` are buyers who got a lower number than one who had been answered before they asked.
The auction: `crossed` are markets in which a process saw a bid above an ask, `sold twice` offers with two buyers. Lock
waits are counted by MySQL and MariaDB only.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from tests.demo.helpers import manage, migrate
from tests.marks import committed
from tests.proofs.figures import FULL
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.timeout(600)]
SMALL = not FULL
SERIALS = ["--numbers", "100", "--requests", "300", "--processes", "4"]
if not SMALL:
    SERIALS = ["--numbers", "1000", "--requests", "5000", "--processes", "8"]
SECONDS = "0.5s" if SMALL else "10s"


@pytest.fixture
def race(redis_url, figure, row, transactional_db):
    """race(app, command, options): run it, keep what it says as a figure, and return the strategies that ran."""

    def run(app, command, options):
        migrate("jobqueue")
        migrate(app)
        done = manage(command, *options, "--json", "-v0", redis_url=redis_url, timeout_seconds=500)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        words = " ".join(["python manage.py", command, *options])
        kept = {name: found[name] for name in ("database", "size", "strategies")}
        figure(
            "run", {"race": app, "vendor": VENDOR, "command": words, "date": f"{datetime.now(UTC):%Y-%m-%d}", **kept}
        )
        for verdict in found["strategies"]:
            row(**{name: value for name, value in verdict.items() if isinstance(value, str | int | float)})
        ran = {verdict["strategy"]: verdict for verdict in found["strategies"] if not verdict["not_run"]}
        assert all(verdict["kept"] for verdict in ran.values() if verdict["safe"])
        return ran

    return run


def test_of_all_ways_to_sell_a_serial_number_only_the_unsafe_one_sells_it_twice(race):
    """Serial numbers: who got which number is counted from the rows after the race."""
    ran = race("serials", "race_serials", SERIALS)
    assert set(ran) == {"unsafe", "row-lock", "row-lock-skip", "in-order", "redis-lock", "redis-retry", "take"}
    assert ran["unsafe"]["duplicates"] > 0
    assert ran["take"]["repeats"] > 0
    safe = [verdict for verdict in ran.values() if verdict["safe"]]
    assert [verdict["duplicates"] for verdict in safe] == [0] * 6


@pytest.mark.skipif(not FULL, reason="make prove ISSUE=demo; a short race is in tests/demo/test_auction.py")
def test_the_rules_of_the_auction_hold_under_every_lock_that_claims_it(race):
    """The auction: the process looks at the rules after each of its commits."""
    ran = race("auction", "race_auction", ["--processes", "16", "--seconds", SECONDS])
    assert {"none", "mutex", "redis-lock"} <= set(ran)
    assert SMALL or not ran["none"]["kept"]
    if VENDOR != "sqlite" and not SMALL:
        # No offer there yet, no row to lock.
        assert not ran["row-lock"]["kept"] or not ran["row-lock-index"]["kept"]
