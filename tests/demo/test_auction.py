"""The auction of the demo: its rules, and a short race. The long one: tests/proofs/demo/test_races.py."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from tests.demo.helpers import manage, migrate
from tests.marks import committed
from tests.patience import patient
from tests.settings import VENDOR

pytestmark = committed
#: of each race; on a busy machine fewer trades fit into it
SECONDS = f"{patient(0.3):.1f}s"
OURS = ["mutex"] if VENDOR == "sqlite" else ["mutex", "named-lock"]


@pytest.mark.skipif(VENDOR != "sqlite", reason="the rules know no locks, so one database is enough")
def test_the_rules_hold_for_one_customer_at_a_time():
    done = manage("test", "demo_project.auction", "-v0")
    assert done.returncode == 0, done.stderr


def test_without_a_lock_the_rules_are_broken_and_with_ours_they_are_kept(transactional_db, tmp_path):
    migrate("auction")
    chart = tmp_path / "a.svg"
    wanted = [word for name in ("none", *OURS, "redis-lock") for word in ("--strategy", name)]
    done = manage("race_auction", "--processes", "3", "--seconds", SECONDS, *wanted, "--json", "--svg", chart)
    assert done.returncode == 0, done.stderr + done.stdout
    verdicts = {verdict["strategy"]: verdict for verdict in json.loads(done.stdout)["strategies"]}
    for seconds in ("4s", "20s", "60s"):
        if not verdicts["none"]["kept"]:
            break
        # A busy machine: not many met.
        longer = manage(
            "race_auction", "--processes", "4", "--seconds", seconds, "--strategy", "none", "--json", "--svg", chart
        )
        (verdicts["none"],) = json.loads(longer.stdout)["strategies"]
    assert not verdicts["none"]["kept"], verdicts["none"]
    for name in OURS:
        assert verdicts[name]["kept"], verdicts[name]
        assert verdicts[name]["commits"] == verdicts[name]["checks"] > 5
    assert verdicts["redis-lock"]["not_run"] == "no REDIS_URL"
    assert "BROKEN" in "".join(ElementTree.parse(chart).getroot().itertext())


FOOTPRINTS = """
import json
from datetime import timedelta
from django.db import connection, transaction
from django.utils import timezone
from demo_project.auction.models import Offer
from jobqueue.inspect import lock_footprint

due = timezone.now() + timedelta(hours=1)
for size in range(40):
    for price in range(1, 6):
        Offer.objects.create(product="shoe", size=size, side="bid", price=price, owner="x", due_at=due)
found = []
(index,) = Offer._meta.indexes
for change in ("none", "remove_index", "add_index"):
    if change != "none":
        with connection.schema_editor() as editor:
            getattr(editor, change)(Offer, index)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE TABLE auction_offer")
        cursor.fetchall()
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    with transaction.atomic(), lock_footprint() as footprint:
        list(Offer.objects.of("shoe", "2").select_for_update())
    found.append([len(footprint.rows), len(footprint.gaps)])
Offer.objects.all().delete()
print(json.dumps(found))
"""


@pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="only InnoDB locks what it reads")
def test_the_index_narrows_a_row_lock_to_one_market(transactional_db):
    migrate("auction")
    done = manage("shell", "-v0", "-c", FOOTPRINTS)
    assert done.returncode == 0, done.stderr
    with_index, without, again = json.loads(done.stdout.splitlines()[-1])
    # Five offers and the gap behind the last; without the index all two hundred (and what races left), and the end.
    assert with_index == again == [5, 6]
    assert without[0] >= 200
    assert without[1] == without[0] + 1


def test_a_strategy_that_is_not_known_is_a_usage_error():
    done = manage("race_auction", "--strategy", "luck")
    assert done.returncode == 2
    assert "invalid choice: 'luck'" in done.stderr
