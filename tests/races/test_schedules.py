"""Schedules that several sessions announce, fire and change at once."""

import threading

import pytest
from django.db import connections, transaction

from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import Job, Schedule, ScheduleTick, ScheduleVersion
from jobqueue.schedules import disable, versions
from jobqueue.schedules.declaring import declare, withdraw
from jobqueue.schedules.firing import fire_due
from tests.app import tasks
from tests.marks import committed, finding
from tests.patience import patient
from tests.schedules.helpers import USING, begin, row
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.usefixtures("own_registry")]
row_locks = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one write lock")
TICKS = 30


def overdue(name="tick"):
    """Let the last TICKS minutes be undecided."""
    Schedule.objects.filter(name=name).update(decided_until=UtcNowPlus(-60 * TICKS), look_at=UtcNowPlus(-1))


def together(*works):
    """Each of the works in a thread and a session of its own, begun at the same time; what they returned."""
    start, found, wrong = threading.Barrier(len(works)), [], []

    def run(work):
        try:
            start.wait(patient())
            found.append(work())
        except Exception as error:
            wrong.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patient())
    assert not wrong, wrong
    return found


def fire_all():
    for _ in range(20):
        fire_due(USING)


def test_ticks_that_eight_sessions_fire_at_once_fire_once():
    begin(every=60, missed="all")
    overdue()
    together(*[fire_all] * 8)
    fire_all()
    ticks = [*ScheduleTick.objects.values_list("tick_at", flat=True)]
    assert TICKS - 1 <= len(ticks) <= TICKS + 2
    told = [options["tick"] for options in Job.objects.values_list("options", flat=True)]
    assert sorted(told) == sorted({tick.isoformat() for tick in ticks})


@row_locks
def test_a_schedule_that_another_session_has_locked_is_left_to_it_and_the_others_fire():
    begin(every=60)
    begin(name="other", every=60)
    for name in ("tick", "other"):
        overdue(name)
    locked, go_on = threading.Event(), threading.Event()

    def hold():
        with transaction.atomic():
            Schedule.objects.select_for_update().get(name="tick")
            locked.set()
            go_on.wait(4 * patient())

    def fire():
        locked.wait(patient())
        try:
            fire_due(USING)
        finally:
            go_on.set()

    together(hold, fire)
    assert [row(name).last_job_id is None for name in ("tick", "other")] == [True, False]
    fire_due(USING)
    assert row("tick").last_job_id is not None


@finding("S-A2")
@row_locks
@pytest.mark.parametrize("kind", ["ordering_key", "dedupe_key"])
def test_a_schedule_whose_key_is_in_an_open_transaction_leaves_the_others_and_fires_after_it(kind):
    task = tasks.add.using(**{kind: "k"})
    begin(name="key", task=task, every=60)
    begin(every=60)
    for name in ("tick", "key"):
        overdue(name)
    Schedule.objects.filter(name="key").update(look_at=UtcNowPlus(-2))
    locked, go_on = threading.Event(), threading.Event()

    def hold():
        with transaction.atomic():
            task.enqueue(1, 2)
            locked.set()
            go_on.wait(4 * patient())
            transaction.set_rollback(True)

    def fire():
        locked.wait(patient())
        try:
            fire_due(USING)
            fire_due(USING)
        finally:
            go_on.set()

    together(hold, fire)
    assert row("tick").last_job_id is not None
    assert row("key").last_job_id is None
    assert ScheduleTick.objects.filter(schedule_id=row("key").pk).count() == 0
    Schedule.objects.update(look_at=UtcNowPlus(-1))
    fire_due(USING)
    assert row("key").last_job_id is not None


@finding("S-A2")
@row_locks
def test_a_schedule_that_an_operators_transaction_has_locked_keeps_no_worker_from_announcing():
    begin(name="locked", every=60)
    locked, go_on = threading.Event(), threading.Event()

    def hold():
        with transaction.atomic():
            disable("locked", reason="now")
            locked.set()
            go_on.wait(4 * patient())

    def announce():
        locked.wait(patient())
        try:
            for name in ("locked", "new"):
                withdraw(name)
                declare(name, tasks.add, (3, 4), None, {"every": 120}, "code")
            ScheduleVersion.objects.update(announced_at=UtcNowPlus(-30))
            return len(versions.announce(USING))
        finally:
            go_on.set()

    assert 2 in together(hold, announce)
    assert row("new").next_at is not None
    versions.settle(USING)
    assert row("locked").definition["timing"]["every_seconds"] == 120
    assert not row("locked").enabled


def test_sessions_that_announce_the_same_at_once_make_one_schedule():
    begin(every=60)
    Schedule.objects.all().delete()
    ScheduleVersion.objects.all().delete()
    found = together(*[lambda: versions.announce(USING)] * 6)
    assert len({tuple(ids) for ids in found}) == 1
    assert Schedule.objects.count() == ScheduleVersion.objects.count() == 1


def test_a_schedule_that_is_disabled_while_it_fires_fires_whole_ticks_or_none():
    begin(every=60, missed="all")
    overdue()
    together(fire_all, lambda: disable("tick", reason="now"), fire_all)
    assert not row().enabled
    assert row().look_at is None
    fired = ScheduleTick.objects.filter(outcome="fired").count()
    assert fired == Job.objects.count()
    fire_all()
    assert Job.objects.count() == fired
