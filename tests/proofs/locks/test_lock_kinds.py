"""One key, many processes: an outside observer sees one holder at a time, whatever happens to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager

import pytest
from django.db import connection

from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import LockNotAcquired, LockNotHeld
from jobqueue.locks import lease_lock
from jobqueue.locks.redis import PREFIX
from jobqueue.models import LockRow
from tests.app.models import Account
from tests.locks.helpers import expire, make_lock, row
from tests.patience import patient
from tests.proofs.figures import FULL
from tests.proofs.locks.kinds import KINDS, holding
from tests.proofs.running import ROOT, wait_for
from tests.settings import VENDOR

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]
# Redis has nothing to do with the database, so once is enough, where the proof is longest; SQLite has no locks by name.
REDIS_ON = "mysql" if FULL else "sqlite"
HERE = [kind for kind in KINDS if (kind != "redis" or VENDOR == REDIS_ON) and (kind != "named" or VENDOR != "sqlite")]
# For a look at the full proof on a busy machine.
SECONDS = float(os.environ.get("JOBQUEUE_PROVE_SECONDS", 60 if VENDOR == "mysql" else 10)) if FULL else 0.5
TTL_SECONDS = 1.0


@pytest.fixture
def environment(request, settings):
    """environment(kind): what a process of ours needs; Redis is started for its own kind only."""

    def make(kind):
        url = request.getfixturevalue("redis_url") if kind == "redis" else ""
        settings.JOBQUEUE = {"REDIS_URL": url or None}
        # SQLite's file must be closed here when others write it.
        connection.close()
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.proofs.settings",
            "JOBQUEUE_TEST_NAME": str(connection.settings_dict["NAME"]),
            "PYTHONPATH": str(ROOT),
            **({"JOBQUEUE_PROOF_REDIS_URL": url} if url else {}),
        }

    return make


@contextmanager
def holder(kind, environment, account=0, ttl_seconds=TTL_SECONDS):
    """A process that holds the lock; killed at the end of the block. Gives it and its fence."""
    command = [sys.executable, "-m", "tests.proofs.locks.hold", kind, str(ttl_seconds), str(account)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=ROOT, env=environment(kind), **pipes)
    try:
        word, fence = process.stdout.readline().split()
        assert word == "held"
        yield process, int(fence)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("kind", HERE)
def test_one_holder_at_a_time(kind, environment, full, figure, tmp_path):
    """N processes on one key: never two holders at once, the fence strictly increasing in the order of the file."""
    processes = 16 if full else 4
    log = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-m", "tests.proofs.locks.contend", kind, str(processes), str(SECONDS), str(log)],
        cwd=ROOT,
        env=environment(kind),
        capture_output=True,
        text=True,
        timeout=patient(SECONDS + 120),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in log.read_text().splitlines()]
    held, violations = observe(lines)
    assert violations == []
    assert len(held) == processes
    fences = [int(line[2]) for line in lines if line[0] == "in"]
    if kind in ("lease", "redis"):
        assert fences == sorted(set(fences))
        figure("fences, first and last", f"{fences[0]} and {fences[-1]}, strictly increasing")
    figure("lock", kind)
    figure("processes", processes)
    figure("seconds", SECONDS)
    figure("times held", sum(held.values()))
    figure("by one process, least and most", f"{min(held.values())} to {max(held.values())}")
    figure("two at once", len(violations))


def observe(lines):
    """How often each process held the lock, and every moment at which the file shows something else than one holder."""
    held, violations, inside, last = Counter(), [], None, 0
    for event, process, _, instant in lines:
        if int(instant) < last:
            violations.append(f"{process}: its {event} is older than the line before")
        if (event == "in") == (inside is not None) or (event == "out" and inside != process):
            violations.append(f"{process}: {event} while {inside} is inside")
        held[process] += event == "in"
        inside, last = process if event == "in" else None, int(instant)
    return held, violations


def test_the_observer_sees_two_holders_when_there_are_two():
    lines = [["in", "1", "0", "1"], ["in", "2", "0", "2"], ["out", "1", "0", "3"], ["out", "2", "0", "4"]]
    assert len(observe(lines)[1]) == 3
    assert observe(lines[:1] + lines[2:3]) == (Counter({"1": 1}), [])


@pytest.mark.parametrize("kind", [kind for kind in HERE if kind in ("lease", "redis")])
def test_a_holder_that_was_stopped_past_its_time_cannot_write_any_more(kind, environment, figure):
    """SIGSTOP past the end of the lock, then SIGCONT: the late write and the late release are refused."""
    account = Account.objects.create(owner="ann")
    with holder(kind, environment, account.pk) as (process, fence):
        process.send_signal(signal.SIGSTOP)
        with holding(kind, 600) as fresh:
            assert fresh.fence > fence
            Account.objects.filter(pk=account.pk).fenced_update(fresh, balance=1)
            connection.close()
            process.send_signal(signal.SIGCONT)
            answers, _ = process.communicate("go on\n", timeout=patient(30))
    write, release = answers.split()
    assert (write, release) == ("StaleFence", "LockLost")
    account.refresh_from_db()
    assert (account.balance, account.fence) == (1, fresh.fence)
    figure("lock", kind)
    figure("its write", write)
    figure("its release", release)


@pytest.mark.parametrize("kind", [kind for kind in HERE if kind != "mutex"])
def test_a_release_by_others_changes_nothing_and_a_second_one_says_so(kind, environment, figure):
    """Release by who does not hold the lock (the holder is another process), and a second release by who did."""
    environment(kind)
    answers = {}
    late = make_lock(kind, "proof", ttl_seconds=600) if kind in ("lease", "redis") else None
    if late is not None:
        late.acquire()
        run_out(kind)
    with holder(kind, environment, ttl_seconds=600) as (process, fence):
        stranger = make_lock(kind, "proof")
        before = row("proof") if kind == "lease" else None
        answers["by who never had it"] = refusal(stranger.release)
        if late is not None:
            answers["by the holder before"] = refusal(late.release)
        with pytest.raises(LockNotAcquired):
            make_lock(kind, "proof").acquire()
        assert before == (row("proof") if kind == "lease" else None)
        said, _ = process.communicate("go on\n", timeout=patient(30))
    # Its own release was good all the same.
    assert said.split()[1] == "done"
    twice = make_lock(kind, "proof", timeout_seconds=patient(5)).acquire()
    assert getattr(twice, "fence", fence) >= fence
    twice.release()
    answers["a second time"] = refusal(twice.release)
    wanted = {"by who never had it": "LockNotHeld", "a second time": "LockNotHeld"}
    assert answers == wanted | ({"by the holder before": "LockLost"} if late is not None else {})
    figure("lock", kind)
    for what, name in answers.items():
        figure(what, name)


def run_out(kind):
    """The time of whoever holds the lock ends now."""
    if kind == "lease":
        expire("proof")
    else:
        make_lock(kind, "proof")._client.delete(PREFIX + "proof")
    # SQLite's file must be closed here when others write it.
    connection.close()


def refusal(release):
    """The name of the error."""
    with pytest.raises(LockNotHeld) as refused:
        release()
    return type(refused.value).__name__


def test_a_worker_deletes_locks_that_have_ended(run_worker):
    for name in ("gone", "alive"):
        lease_lock(name, 3600).acquire()
    LockRow.objects.filter(pk="gone").update(expires_at=UtcNowPlus(-1))
    connection.close()
    worker = run_worker()
    wait_for(lambda: not LockRow.objects.filter(pk="gone").exists(), 30, "the deletion")
    assert worker.stop() == 0
    # The worker's own turns at chores run out by themselves.
    assert LockRow.objects.exclude(pk__startswith="jobqueue: ").get().pk == "alive"


@pytest.mark.parametrize("kind", HERE)
def test_a_killed_holder_frees_the_key(kind, environment, full, figure):
    """SIGKILL of the holder: how long until the next one has the lock (time to live 1 s)."""
    with holder(kind, environment) as (process, _):
        process.kill()
        begun = time.monotonic()
        with holding(kind, 60):
            seconds = time.monotonic() - begun
    # In the suite the machine is busy with other tests, and all that counts is that the death frees it.
    assert seconds < (TTL_SECONDS if kind in ("lease", "redis") else 0) + (1 if full else patient(10))
    figure("lock", kind)
    figure("seconds until free", round(seconds, 2))
