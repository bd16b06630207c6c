"""What runworker --dry-run and reap_leases print and do."""

import json
import os
import signal
from collections import Counter
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from jobqueue.db.clock import UtcNowPlus
from jobqueue.locks import lease_lock
from jobqueue.models import LockRow
from jobqueue.transitions import claim
from tests.factories import expire, make_job, make_jobs, row, state


def dry_run(*words):
    out = StringIO()
    call_command("runworker", "--dry-run", *words, stdout=out)
    return out.getvalue()


@pytest.mark.parametrize("words", [["runworker"], ["reap_leases"], ["relay_outbox"], ["jobs", "keys"]], ids=" ".join)
@pytest.mark.parametrize(
    ("setting", "option", "status"),
    [("elsewhere", [], 4), ("", [], 4), ("default", ["--database", "elsewhere"], 2), ("default", ["--database="], 2)],
)
def test_a_database_that_is_none_is_told_by_where_it_came_from(settings, words, setting, option, status):
    settings.JOBQUEUE = {"DATABASE": setting}
    with pytest.raises((CommandError, SystemExit)) as stopped:
        call_command(*words, *option, stderr=StringIO())
    assert getattr(stopped.value, "returncode", None) or stopped.value.code == status


@pytest.mark.django_db
class TestDryRun:
    def test_it_shows_what_would_be_claimed_in_order_and_changes_nothing(self):
        low, high = make_job(priority=1), make_job(priority=9)
        make_job("other")
        before = [row(low), row(high)]
        lines = dry_run("q").splitlines()
        assert [line.split()[0] for line in lines] == [f"#{high}", f"#{low}"]
        assert lines[0] == f"#{high}  q  priority 9  handler  attempt 1"
        assert [row(low), row(high)] == before

    def test_it_says_when_nothing_is_due(self):
        assert dry_run("empty") == "nothing is due on queues empty\n"

    def test_it_stops_at_20(self):
        make_jobs(25)
        lines = dry_run().splitlines()
        assert len(lines) == 21
        assert lines[-1] == "... and perhaps more"


@pytest.mark.django_db
@pytest.mark.parametrize(
    "name", ["x'; DROP TABLE job_queue; --", 'x"', "`x`", "%s", "%(x)s", "\\", "한국어", "a b", "é"]
)
def test_an_odd_queue_name_is_only_a_name(name):
    other = make_job()
    job_id = make_job(name)
    assert f"#{job_id}  {name}  " in dry_run("--queues", name)
    assert [state(i) for i in (other, job_id)] == ["READY", "READY"]


def reap(*words):
    out = StringIO()
    call_command("reap_leases", *words, stdout=out)
    return out.getvalue()


@pytest.mark.django_db
class TestReapLeases:
    def lapsed(self, count=3):
        make_jobs(count, max_attempts=2)
        leases = claim("q", limit=count, worker="w")
        expire(*leases)
        return [lease.job_id for lease in leases]

    def test_nothing_to_do_is_no_error(self):
        assert reap() == (
            "requeued 0, dead-lettered 0, canceled 0, locks freed 0, workers marked dead 0, dead letters redriven 0, "
            "ended jobs deleted 0\n"
        )

    def test_it_says_what_it_did(self):
        ids = self.lapsed()
        assert reap("--limit", "2") == (
            "requeued 3, dead-lettered 0, canceled 0, locks freed 0, workers marked dead 0, dead letters redriven 0, "
            "ended jobs deleted 0\n"
        )
        assert {state(i) for i in ids} == {"READY"}
        leases = claim("q", limit=3, worker="w")
        expire(*leases)
        assert reap().startswith("requeued 0, dead-lettered 3,")

    def test_json_has_stable_keys(self):
        self.lapsed()
        assert json.loads(reap("--json", "--dry-run")) == {"version": 1, "expired": 3, "locks": 0}
        expected = {"version": 1, "requeued": 3, "dead": 0, "canceled": 0, "workers_dead": 0, "locks_freed": 0}
        expected |= {"mutexes_deleted": 0}
        expected |= {"events_deleted": 0, "keys_deleted": 0, "records_deleted": 0}
        expected |= {"figures_deleted": 0, "findings_deleted": 0}
        expected |= {"jobs_opened": 0, "jobs_redriven": 0, "jobs_skipped": 0}
        expected |= {"redrives_deleted": 0, "gates_jobs_opened": 0, "gates_rows_deleted": 0}
        expected |= {"workers_deleted": 0, "archived_jobs_deleted": 0}
        expected |= {"schedule_ticks_deleted": 0, "schedule_versions_deleted": 0, "schedules_deleted": 0}
        expected |= {"groups_members_ended": 0, "groups_ended": 0, "groups_deleted": 0}
        expected |= {"jobs_deleted": 0, "attempts_deleted": 0}
        expected |= {
            "statistics_deleted": 0,
            "statistics_added_up": 0,
        }
        expected |= {"alarms_deleted": 0, "audit_events_deleted": 0}
        expected |= {"bulk_jobs_changed": 0, "bulk_jobs_refused": 0}
        assert json.loads(reap("--json", "--verbosity", "0")) == expected

    def test_a_dry_run_changes_nothing(self):
        ids = self.lapsed()
        before = [row(i) for i in ids]
        assert reap("--dry-run") == "expired: 3 leases and 0 locks\n"
        assert [row(i) for i in ids] == before

    def test_locks_that_have_ended_are_freed(self):
        for name in ("gone", "alive"):
            lease_lock(name, 60).acquire()
        LockRow.objects.filter(pk="gone").update(expires_at=UtcNowPlus(-1))
        assert reap("--dry-run") == "expired: 0 leases and 1 lock\n"
        assert reap().endswith("locks freed 1, workers marked dead 0, dead letters redriven 0, ended jobs deleted 0\n")
        assert [lock.pk for lock in LockRow.objects.all()] == ["alive"]

    def test_quiet_is_quiet(self):
        assert reap("--verbosity", "0") == ""


@pytest.mark.django_db
def test_reap_leases_with_an_interval_stops_on_sigterm(monkeypatch):
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    passes = []

    def run_once(*args, **kwargs):
        passes.append(1)
        if len(passes) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return Counter()

    monkeypatch.setattr("jobqueue.management.commands.reap_leases.reaper.run_once", run_once)
    try:
        assert len(reap("--interval", "10ms").splitlines()) == 3
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
