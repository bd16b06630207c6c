"""The schedule, the group and the prune of the demo."""

import pytest

from demo_project.demo.month_stage import MonthStage
from tests.demo.helpers import manage
from tests.demo.test_orders import proofs


def failing(lines, ticks=(1, 2), found=102, deleted=102):
    """The claims that do not hold of a stage that saw this."""
    stage = MonthStage.__new__(MonthStage)
    stage.customers = 100
    stage._ticks, stage.found, stage.deleted, stage._first_id = list(ticks), found, deleted, 0
    stage.lines = lambda: lines
    return {proof.claim for proof in stage.proofs() if not proof.holds}


@pytest.mark.django_db
def test_the_proofs_fail_if_something_was_done_twice_or_not_at_all():
    good = [f"invoice {number}" for number in range(100)]
    assert failing([*good, "report of 100"]) == set()
    assert failing(good) == {"what the callback of the group has written", "invoices written after the report"}
    assert failing([*good[:99], "report of 99"]) == {"invoices written", "what the callback of the group has written"}
    assert failing([*good[:99], good[0], "report of 100"]) == {"customers invoiced twice"}
    assert failing([*good[:99], "report of 100", good[99]]) == {"invoices written after the report"}
    assert failing([*good, "report of 100"], ticks=(1, 1)) == {"ticks that did not add exactly one job"}
    assert failing([*good, "report of 100"], deleted=101) == {"jobs that the prune has deleted, as its dry run said"}


def test_a_month_is_closed_by_a_tick_and_its_jobs_are_pruned(tmp_path):
    done = manage(
        "demo",
        "--stage",
        "month",
        "--size",
        "full",
        DEMO_DIR=str(tmp_path),
        BROKER_URL="",
        DATABASE_URL="sqlite:///:memory:",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(proofs(done).values()) == ["yes"] * 8, done.stdout
    assert "$ manage.py jobs prune --queue billing --state done=7d --yes" in done.stdout
    assert "No invoice was lost or done twice." in " ".join(done.stdout.split())
