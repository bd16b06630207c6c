"""known(), preview(), run_now(), disable() and enable()."""

from datetime import timedelta

import pytest
from django.db import transaction

from jobqueue.db.clock import read_now
from jobqueue.exceptions import InvalidValue, PayloadError
from jobqueue.models import Job
from jobqueue.schedules import disable, enable, known, preview, run_now, versions
from jobqueue.schedules.declaring import declare
from jobqueue.testing import travel
from tests.app import tasks
from tests.marks import finding
from tests.schedules.helpers import USING, begin, fire, minutes, outcomes, row

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_registry")]


def test_known_tells_what_is_in_force():
    begin(every="15m", overlap="skip")
    (found,) = known()
    assert (found.name, found.task, found.queue, found.args) == ("tick", "tests.app.tasks.add", "default", [1, 2])
    assert (found.every_seconds, found.words, found.overlap, found.source) == (900, "every 15m 0s", "skip", "code")
    assert found.enabled
    assert found.next_at == row().next_at
    assert found.last_job_id is None


def test_preview_gives_the_next_ticks_in_the_zone_of_the_schedule():
    begin(cron="0 3 * * *", timezone="Asia/Seoul")
    ticks = preview("tick", 3)
    assert [(tick.hour, tick.utcoffset()) for tick in ticks] == [(3, timedelta(hours=9))] * 3
    assert ticks[1] - ticks[0] == timedelta(days=1)
    assert ticks[0] == row().next_at


def test_preview_knows_a_schedule_that_no_worker_has_seen():
    declare("later", tasks.add, (1, 2), None, {"every": 60}, "code")
    assert len(preview("later")) == 5


def test_run_now_adds_a_job_at_once_and_leaves_the_ticks_alone():
    due = begin(every=60).next_at
    number = run_now("tick")
    job = Job.objects.get()
    assert (job.pk, job.payload["args"]) == (number, [1, 2])
    assert job.options["tick"] <= read_now(USING).isoformat()
    assert (row().next_at, row().last_job_id, outcomes()) == (due, None, [])


def test_run_now_is_part_of_the_callers_transaction():
    begin(every=60)
    with transaction.atomic():
        run_now("tick")
        transaction.set_rollback(True)
    assert Job.objects.count() == 0


def test_a_disabled_schedule_fires_no_tick_and_what_it_left_out_is_not_made_up():
    due = begin(every=60, missed="all").next_at
    assert [disable("tick", reason="noise"), disable("tick", reason="again")] == [True, False]
    assert (known()[0].reason, known()[0].next_at) == ("noise", None)
    with travel(to=due + minutes(3)) as clock:
        assert fire() == 0
        assert run_now("tick")
        assert [enable("tick"), enable("tick")] == [True, False]
        assert fire() == 0
        clock.forward(60)
        assert fire() == 1


@finding("S-B8")
def test_ticks_that_waited_when_a_schedule_was_disabled_do_not_fire_when_it_is_enabled():
    due = begin(every=60, overlap="queue").next_at
    with travel(to=due) as clock:
        fire()
        clock.forward(60)
        fire()
        assert outcomes() == [("fired", 1), ("waiting", 1)]
        disable("tick", reason="noise")
        clock.forward(3 * 86_400)
        Job.objects.all().delete()
        enable("tick")
        clock.forward(30)
        assert fire() == 0
        clock.forward(31)
        assert fire() == 1
    assert [outcome for outcome, _ in outcomes()] == ["fired", "skipped", "fired"]


def test_a_retired_schedule_cannot_be_run():
    begin(every=60)
    with travel(versions.RETIRE_SECONDS + 1):
        versions.retire(USING)
    with pytest.raises(InvalidValue, match="is retired"):
        run_now("tick")


@pytest.mark.parametrize("call", [run_now, enable, preview, lambda name: disable(name, reason="x")])
def test_an_unknown_name_is_refused_with_the_nearest_one(call):
    begin(every=60)
    with transaction.atomic():
        with pytest.raises(InvalidValue, match=r"no schedule is called 'tik'.*did you mean 'tick'"):
            call("tik")
        assert known()  # the transaction goes on


@pytest.mark.parametrize("reason", ["", "   ", "x" * 201])
def test_disable_wants_a_reason(reason):
    begin(every=60)
    with pytest.raises(InvalidValue, match="reason has"):
        disable("tick", reason=reason)
    assert known()[0].enabled


def test_arguments_are_checked_when_the_schedule_is_declared_and_not_at_the_tick():
    with pytest.raises(PayloadError):
        declare("wrong", tasks.add, (), None, {"every": 60}, "code")
