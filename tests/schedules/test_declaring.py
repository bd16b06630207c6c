"""@schedule and JOBQUEUE["SCHEDULES"]: what is declared, and what is refused before anything is written."""

from datetime import UTC, datetime, timedelta

import pytest

from jobqueue import schedule, task
from jobqueue.checks import check_schedules
from jobqueue.conf import load, read
from jobqueue.exceptions import InvalidType, InvalidValue, PayloadError
from jobqueue.schedules.declaring import declare_settings, declared, problems
from tests.app import tasks
from tests.marks import finding

pytestmark = pytest.mark.usefixtures("own_registry")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_schedule_stands_above_its_task_and_returns_it():
    returned = schedule(cron="0 3 * * *", args=(1, 2))(tasks.add)
    assert returned is tasks.add
    assert declared()["tests.app.tasks.add"].terms.timing.cron == "0 3 * * *"


def test_a_task_may_have_several_schedules_under_names_of_their_own():
    schedule(every="15m", name="often", args=(1, 2))(schedule(every="1h", name="seldom", args=(1, 2))(tasks.add))
    assert {*declared()} == {"often", "seldom"}


def test_a_schedule_may_change_the_fields_of_its_task():
    schedule(every="15m", args=(1, 2))(tasks.add.using(priority=5))
    assert declared()["tests.app.tasks.add"].task.priority == 5


def test_the_zone_is_that_of_the_project_unless_it_is_given(settings):
    settings.TIME_ZONE = "Asia/Seoul"
    schedule(cron="0 3 * * *", name="here", args=(1, 2))(tasks.add)
    schedule(cron="0 3 * * *", name="there", args=(1, 2), timezone="UTC")(tasks.add)
    assert [declared()[name].terms.timing.timezone for name in ("here", "there")] == ["Asia/Seoul", "UTC"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "has neither of cron and every"),
        ({"cron": "* * * * *", "every": 5}, "has both of cron and every"),
        ({"cron": "0 0 30 2 *"}, "cannot be read"),
        ({"cron": "* * * * *", "timezone": "Mars/Base"}, "is not a time zone"),
        ({"every": 0}, "above 0"),
        ({"every": 0.5}, "the least is 1"),
        ({"every": -5}, "above 0"),
        ({"every": "soon"}, "is not a duration"),
        ({"every": 60, "start_at": NOON, "end_at": NOON - timedelta(1)}, "before it starts"),
        ({"every": 60, "start_at": NOON.replace(tzinfo=None)}, "is naive"),
        ({"every": 60, "missed": "never"}, "it is one of 'latest', 'all', 'skip'"),
        ({"every": 60, "overlap": "maybe"}, "it is one of 'allow', 'skip', 'queue'"),
        ({"every": 60, "missed_limit": 0}, "missed_limit is 0"),
        ({"every": 60, "jitter_seconds": -1}, "at least 0"),
        ({"every": 60, "name": "a\nb"}, "printable"),
        ({"every": 60, "name": "x" * 256}, "1 to 255"),
    ],
)
def test_wrong_values_are_refused_with_a_sentence(given, sentence):
    with pytest.raises(InvalidValue, match=sentence):
        schedule(**{"args": (1, 2), **given})(tasks.add)
    assert not declared()


@pytest.mark.parametrize("given", [{"every": True}, {"cron": 5}, {"every": 60, "missed_limit": "5"}])
def test_values_of_a_wrong_type_are_refused(given):
    with pytest.raises(InvalidType):
        schedule(args=(1, 2), **given)(tasks.add)


def test_two_schedules_of_one_name_are_refused():
    schedule(every=60, args=(1, 2))(tasks.add)
    with pytest.raises(InvalidValue, match=r"two schedules of the name 'tests.app.tasks.add'"):
        schedule(every=90, args=(1, 2))(tasks.add)
    with pytest.raises(InvalidValue, match="two schedules"):
        schedule(every=90, name="tests.app.tasks.add", args=("a", 1))(tasks.greet)
    assert declared()["tests.app.tasks.add"].terms.timing.every_seconds == 60


def test_a_reloaded_module_replaces_its_schedule():
    def made(seconds):
        def again():
            pass

        again.__module__, again.__qualname__ = "tests.app.tasks", "again"
        return schedule(every=seconds)(task()(again))

    made(60)
    made(90)
    assert declared()["tests.app.tasks.again"].terms.timing.every_seconds == 90


def test_arguments_that_the_task_does_not_take_are_refused():
    with pytest.raises(PayloadError, match=r"schedule 'tests.app.tasks.add'"):
        schedule(every=60)(tasks.add)
    with pytest.raises(PayloadError, match="schedule"):
        schedule(every=60, args=(object(), 1))(tasks.add)
    with pytest.raises(InvalidType, match="args is a list"):
        schedule(every=60, args="ab")(tasks.add)


def test_a_function_that_is_no_task_is_refused():
    with pytest.raises(InvalidType, match="write @schedule above @task"):
        schedule(every=60)(lambda: None)


def test_the_settings_declare_schedules_too(settings):
    settings.JOBQUEUE = {
        "SCHEDULES": {"hourly": {"TASK": "tests.app.tasks.add", "EVERY": "1h", "ARGS": [1, 2], "OVERLAP": "skip"}}
    }
    declare_settings()
    found = declared()["hourly"]
    assert (found.source, found.terms.timing.every_seconds, found.terms.overlap) == ("settings", 3600, "skip")


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"TASK": "tests.app.tasks.addd", "EVERY": 60}, "did you mean"),
        ({"TASK": "nowhere.at.all", "EVERY": 60}, "no task is called"),
        ({"TASK": "tests.app.tasks.add", "ARGS": [1, 2]}, "neither of cron and every"),
        ({"TASK": "tests.app.tasks.add", "EVERY": 60}, "schedule 'one'"),
    ],
)
def test_a_wrong_schedule_of_the_settings_is_left_out(settings, entry, sentence, caplog):
    settings.JOBQUEUE = {"SCHEDULES": {"one": entry, "two": {"TASK": "tests.app.tasks.boom", "EVERY": 60}}}
    assert [(name, sentence in str(error)) for name, error in problems(load().schedules)] == [("one", True)]
    (found,) = check_schedules()
    assert (found.id, sentence in found.msg) == ("jobqueue.E008", True)
    declare_settings()
    assert [*declared()] == ["two"]
    assert "ignoring SCHEDULES['one']" in caplog.text


@pytest.mark.parametrize(
    ("options", "every", "warned"),
    [
        pytest.param({"dedupe_key": "rebuild"}, "1h", True, marks=finding("S-B3")),
        pytest.param({"dedupe_key": lambda a, b: "rebuild"}, "1h", True, marks=finding("S-B3")),
        ({"dedupe_key": "rebuild"}, "2d", False),
        ({"dedupe_key": "rebuild", "unique": "unfinished"}, "1h", False),
        ({"dedupe_key": "rebuild", "unique_seconds": "30m"}, "1h", False),
        pytest.param({"dedupe_key": "rebuild", "unique_seconds": "3h"}, "1h", True, marks=finding("S-B3")),
        ({}, "1h", False),
    ],
)
def test_check_warns_of_a_schedule_that_ticks_while_its_last_job_holds_the_dedupe_key(options, every, warned):
    schedule(every=every, name="index", args=(1, 2))(tasks.add.using(**options) if options else tasks.add)
    assert [one.id for one in check_schedules()] == ["jobqueue.W040"] * warned


@finding("S-A1")
def test_a_module_that_cannot_be_imported_costs_its_own_schedule_alone(settings, tmp_path, monkeypatch, caplog):
    (tmp_path / "module_that_raises.py").write_text("raise RuntimeError('no key in the environment')")
    monkeypatch.syspath_prepend(tmp_path)
    two = {"TASK": "tests.app.tasks.boom", "EVERY": 60}
    settings.JOBQUEUE = {"SCHEDULES": {"one": {"TASK": "module_that_raises.task", "EVERY": 60}, "two": two}}
    declare_settings()
    assert [*declared()] == ["two"]
    assert "ignoring SCHEDULES['one']: RuntimeError: no key in the environment" in caplog.text


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"one": {"TASK": "a.b", "CRONN": "* * * * *"}}, "unknown key 'CRONN'"),
        ({"one": {"EVERY": 60}}, "must have a TASK"),
        ({"one": "a.b"}, "must map the name of a schedule to a dict"),
        ([], "SCHEDULES must be a dict"),
    ],
)
def test_the_form_of_the_setting_is_checked(value, sentence):
    assert sentence in "; ".join(read({"SCHEDULES": value})[1])
