"""The limit and the pause of the demo: a bench counts from outside how many parcels are packed at once."""

import threading
import time

import pytest

from demo_project.demo.parcels_stage import GRACE_SECONDS, ParcelsStage
from demo_project.packing import bench as benches
from demo_project.packing.bench import PackingBench
from demo_project.packing.tasks import pack
from tests.demo.helpers import manage
from tests.demo.test_orders import proofs
from tests.patience import patient


@pytest.fixture
def bench():
    """A packing bench that accepts parcels."""
    found = PackingBench()
    yield found
    found.close()


def test_the_bench_counts_parcels_that_are_there_together(bench, monkeypatch):
    meeting = threading.Barrier(3)
    # Each is packed until all three are there.
    monkeypatch.setattr(benches, "time", type("Clock", (), {"sleep": lambda _: meeting.wait(patient())}))
    threads = [threading.Thread(target=pack.func, args=(f"p-{n}", bench.url)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patient())
    assert bench.most == 3
    assert sorted(parcel for parcel, _ in bench.packed) == ["p-0", "p-1", "p-2"]


def test_the_bench_does_not_count_a_parcel_whose_job_has_ended(bench, monkeypatch):
    monkeypatch.setattr(bench, "_pack_seconds", 0.0)
    before = time.monotonic()
    for number in range(20):
        pack.func(f"p-{number}", bench.url)
    assert bench.most == 1
    assert len(bench.packed) == 20
    assert all(before <= began <= time.monotonic() for _, began in bench.packed)


def failing(bench_most=2, began=0.0, rows=1, tables=("job_audit", "job_flow")):
    """The claims that do not hold of a stage that saw this."""
    stage = ParcelsStage.__new__(ParcelsStage)
    stage.bench = type("Bench", (), {"most": bench_most, "packed": [("p-0", began)]})
    stage.parcels = 60
    stage.rows, stage.written, stage.waited, stage._ids = rows, set(tables), 1, []
    stage._paused_at, stage._resumed_at = 10.0, 20.0
    return {proof.claim for proof in stage.proofs() if not proof.holds} - {"parcels DONE"}


@pytest.mark.django_db
def test_the_proofs_fail_if_the_limit_or_the_pause_did_not_hold():
    assert failing() == set()
    assert failing(bench_most=3) == {"parcels packed at once, the most that the bench saw"}
    assert failing(began=10.0 + GRACE_SECONDS + 0.1) == {"starts later than 1 s after the commit of the pause"}
    assert failing(began=10.0 + GRACE_SECONDS - 0.1) == set()
    assert failing(began=20.1) == set()
    assert failing(rows=2) == failing(tables=("job_flow", "job_queue")) == {"rows that the pause of the queue wrote"}


def test_the_stage_keeps_to_the_limit_and_stands_still_while_its_queue_is_paused(tmp_path):
    done = manage(
        "demo",
        "--stage",
        "parcels",
        "--size",
        "full",
        DEMO_DIR=str(tmp_path),
        BROKER_URL="",
        DATABASE_URL="sqlite:///:memory:",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(proofs(done).values()) == ["yes"] * 6, done.stdout
    assert "6 of 6 proofs hold" in done.stdout
    assert "$ manage.py jobs queues pause packing --reason 'the tape has run out'" in done.stdout
    assert "parcels wait. explain_queue(): Queue packing has been paused for" in done.stdout
    assert "$ manage.py jobs queues resume packing" in done.stdout
    assert "No parcel was lost or done twice." in " ".join(done.stdout.split())
