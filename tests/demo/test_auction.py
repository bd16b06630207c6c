"""The auction of the demo: its rules, and a short race. The long one: tests/proofs/locks/test_auction_race.py."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from tests.demo.helpers import manage
from tests.marks import committed
from tests.settings import VENDOR

pytestmark = committed
OURS = ["mutex"] if VENDOR == "sqlite" else ["mutex", "named-lock"]


@pytest.mark.skipif(VENDOR != "sqlite", reason="the rules know no locks, so one database is enough")
def test_the_rules_hold_for_one_customer_at_a_time():
    done = manage("test", "demo_project.auction", "-v0")
    assert done.returncode == 0, done.stderr


def test_without_a_lock_the_rules_are_broken_and_with_ours_they_are_kept(transactional_db, tmp_path):
    migrated = manage("migrate", "auction", "-v0")
    assert migrated.returncode == 0, migrated.stderr
    wanted = [word for name in ("none", *OURS, "redis-lock") for word in ("--strategy", name)]
    done = manage(
        "race_auction", "--processes", "4", "--seconds", "0.7s", *wanted, "--json", "--svg", tmp_path / "a.svg"
    )
    assert done.returncode == 0, done.stderr + done.stdout
    verdicts = {verdict["strategy"]: verdict for verdict in json.loads(done.stdout)["strategies"]}
    if verdicts["none"]["kept"]:
        # A busy machine: not many met.
        longer = manage("race_auction", "--processes", "4", "--seconds", "4s", "--strategy", "none", "--json")
        (verdicts["none"],) = json.loads(longer.stdout)["strategies"]
    assert not verdicts["none"]["kept"], verdicts["none"]
    for name in OURS:
        assert verdicts[name]["kept"], verdicts[name]
        assert verdicts[name]["commits"] == verdicts[name]["checks"] > 5
    assert verdicts["redis-lock"]["not_run"] == "no REDIS_URL"
    chart = ElementTree.parse(tmp_path / "a.svg")
    assert "BROKEN" in "".join(chart.getroot().itertext())


def test_a_strategy_that_is_not_known_is_a_usage_error():
    done = manage("race_auction", "--strategy", "luck")
    assert done.returncode == 2
    assert "invalid choice: 'luck'" in done.stderr
