"""The size of the demo follows the speed of the machine, and the demo waits as long as something moves."""

import io
import os
import re
import shutil
import signal
import subprocess
from types import SimpleNamespace

import pytest
from django.core.management.base import OutputWrapper

from demo_project.demo import giving_up, progress, speed
from demo_project.demo.giving_up import TimeUp, moved, start_timer, stop_timer
from demo_project.demo.progress import Progress
from demo_project.demo.sizes import COSTS, GOAL_SECONDS, Plan, sized
from tests.demo.helpers import manage
from tests.demo.test_orders import proofs
from tests.docs.markdown import ROOT
from tests.patience import wait_until

STAGES = list(COSTS)


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self):
        return self.now


def shares(slowness, *, hiccup=1.0):
    """The share of each stage on a machine of that slowness, and the seconds of the whole; the first is late."""
    clock = Clock()
    plan, found = Plan(STAGES, slowness, began=0.0, clock=clock), []
    for stage in STAGES:
        found.append(plan.begin())
        seconds = (COSTS[stage].least + COSTS[stage].full * found[-1]) * slowness
        clock.now += seconds * (hiccup if stage == STAGES[0] else 1.0)
        plan.end()
    return found, clock.now


def test_on_a_quiet_machine_each_stage_has_its_full_size():
    assert shares(1.0) == ([1.0] * len(STAGES), sum(cost.least + cost.full for cost in COSTS.values()))


def test_the_slower_the_machine_the_smaller_the_stages_until_they_have_their_least_size():
    sums = [sum(shares(slowness)[0]) for slowness in (1.0, 2.0, 2.5, 3.0, 8.0)]
    assert sums == sorted(sums, reverse=True)
    assert len(set(sums[:4])) == 4
    assert shares(8.0)[0] == [0.0] * len(STAGES)


def test_what_can_be_smaller_fits_into_the_time_and_what_cannot_into_five_minutes():
    for slowness in (1.0, 1.5, 2.0, 2.5, 3.0, 3.5):
        assert shares(slowness)[1] <= GOAL_SECONDS + 1
    assert shares(10.0)[1] < 300


def test_after_a_stage_that_was_late_the_others_are_smaller():
    assert sum(shares(1.5, hiccup=4.0)[0]) < sum(shares(1.5)[0])


def test_a_stage_that_falls_behind_gets_smaller_while_it_runs_and_never_larger():
    clock = Clock()
    plan = Plan(["numbers"], 1.0, began=0.0, clock=clock)
    assert plan.begin() == 1.0
    clock.now = 80.0
    late = plan.again(0.2)
    assert late < 1.0
    clock.now = 80.1
    assert plan.again(0.8) <= late


@pytest.mark.parametrize(("share", "size"), [(1.0, 500), (0.5, 250), (0.1, 120), (0.0, 120)])
def test_a_size_is_a_share_but_not_less_than_the_least(share, size):
    assert sized(500, 120, share) == size


def test_each_stage_proves_at_its_least_size_what_it_proves_at_its_full_size(tmp_path):
    done = manage("demo", "--size", "least", DEMO_DIR=str(tmp_path), BROKER_URL="", DATABASE_URL="sqlite:///:memory:")
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(proofs(done).values()) == ["yes"] * 46, done.stdout
    for size in ("120 files", "120 orders", "80 serial numbers", "24 parcels", "12 jobs fail", "20 invoices"):
        assert size in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 105


@pytest.fixture
def alarm():
    """The handler of the timer is that of before at the end."""
    before = signal.getsignal(signal.SIGALRM)
    yield
    stop_timer()
    signal.signal(signal.SIGALRM, before)


def test_the_demo_does_not_give_up_while_something_moves(alarm, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(giving_up, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(giving_up, "patient", lambda seconds: seconds)
    start_timer()
    for _ in range(40):
        now += giving_up.PATIENCE_SECONDS - 1
        moved()
        signal.raise_signal(signal.SIGALRM)
    now += giving_up.PATIENCE_SECONDS + 1
    with pytest.raises(TimeUp):
        signal.raise_signal(signal.SIGALRM)


def test_the_patience_grows_with_the_load_and_with_the_slowness_that_was_measured(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(speed, "_measured", 1.0)
    load = 0.5
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert speed.patient(10) == 10
    load = 16.0
    assert speed.patient(10) == 80
    speed.note(12.0)
    assert speed.patient(10) == 120
    assert speed.stretched(3.0, 8.0) == 8.0
    assert os.environ == {speed.VARIABLE: "12.00"}


def test_on_a_slow_machine_the_leases_and_the_probes_of_the_demo_take_longer():
    shown = "from django.conf import settings as s; o = s.JOBQUEUE; "
    shown += "print(o['OUTBOX']['LEASE_SECONDS'], o['DEPENDENCIES']['payment-service']['PROBE'])"
    found = {
        slowness: manage("shell", "-v0", "-c", shown, DEMO_SLOWNESS=slowness).stdout.split() for slowness in ("1", "2")
    }
    assert found == {"1": ["3.0", "500ms"], "2": ["6.0", "1000ms"]}


def test_a_pipe_hears_of_the_progress_when_nothing_else_was_said(monkeypatch):
    monkeypatch.setattr(progress, "SILENT_SECONDS", 0.05)
    out = io.StringIO()
    bar = Progress(8, "files", OutputWrapper(out))
    with bar.moving():
        bar.show(3)
        wait_until(lambda: "... 3/8 files" in out.getvalue(), what="a line of the progress")


def test_the_first_line_says_what_the_demo_does_and_how_long_it_takes_as_the_readme_does(tmp_path):
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    (tmp_path / "pyproject.toml").touch()
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["sh", "scripts/demo.sh"], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "DATABASE_URL": "", "REDIS_URL": "", "BROKER_URL": ""},
    )  # fmt: skip
    first, *_, last = done.stdout.splitlines()
    assert last == "manage.py demo"
    assert "workers run jobs" in first
    (time_told,) = re.findall(r"takes (one to two minutes)", first)
    assert len(first) <= 100
    assert f"takes {time_told}" in " ".join((ROOT / "README.md").read_text().split())
    assert time_told in (ROOT / "Makefile").read_text()
