"""The pages of schedules: what they show, who may change, run and disable, and what is refused."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import translation
from django.utils.html import escape

from jobqueue import schedules
from jobqueue.admin import ScheduleAdmin
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import DatabaseBusy, InvalidValue
from jobqueue.models import Job, Schedule
from jobqueue.schedules import editing, versions
from jobqueue.schedules.declaring import declare, withdraw
from jobqueue.schedules.definitions import from_json
from jobqueue.schedules.listing import arguments_of
from jobqueue.testing import travel
from tests.admin.helpers import (
    HOSTILE,
    LIMIT_STATEMENTS,
    SCRIPT,
    Inline,
    act,
    client_of,
    job_page,
    person,
    root,
    text_of,
)
from tests.app import tasks
from tests.factories import set_columns
from tests.marks import finding
from tests.schedules.helpers import USING, begin, fire, row

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_registry")]

LIST = "/admin/jobqueue/schedule/"
ADD = f"{LIST}add/"
EVERY = {"cron": "", "every": "15m", "timezone": "UTC", "missed": "latest", "missed_limit": "100", "overlap": "allow"}
FORM = EVERY | {"name": "made", "task": "tests.app.tasks.add", "args": "[1, 2]", "kwargs": "{}", "jitter_seconds": "0s"}


def page_of(name="tick"):
    return f"{LIST}{row(name).pk}/change/"


def viewer(*more, name="ann", **options):
    return client_of(person("view_schedule", *more, name=name), **options)


def said(response):
    """The messages of the page to which a POST leads."""
    return text_of(response).partition('<ul class="messagelist">')[2].partition("</ul>")[0]


def do(client, verb, *names, **data):
    """Choose schedules and an action in the list; the list after it."""
    assert act(client, verb, *(row(name).pk for name in names), path=LIST, **data).status_code in (200, 302)
    return client.get(LIST)


def logged():
    return list(LogEntry.objects.order_by("pk").values_list("change_message", flat=True))


def test_the_list_says_when_each_schedule_ticks_what_ran_last_and_its_state():
    due = begin("nightly", cron="0 3 * * *", timezone="Asia/Seoul").next_at
    with travel(to=due):
        fire()
    schedules.disable("nightly", reason="the server moves")
    page = text_of(viewer().get(LIST))
    for text in ("nightly", "At 03:00", "(Asia/Seoul)", "app.add", "disabled", "the server moves"):
        assert text in page, text
    assert job_page(row("nightly").last_job_id) in page
    assert not Inline(page).found


def test_the_filters_and_the_search_find_schedules():
    for name in ("one", "two", "three", "four"):
        begin(name, source="settings" if name == "two" else "code")
    schedules.disable("one", reason="r")
    Schedule.objects.filter(name="two").update(edited=True, digest="x")
    Schedule.objects.filter(name="three").update(retired_at=row("three").created_at)
    client = viewer()

    def shown(**data):
        page = text_of(client.get(LIST, data))
        return {name for name in ("one", "two", "three", "four") if f">{name}</a>" in page}

    assert shown(state="enabled") == {"two", "four"}
    assert shown(state="disabled") == {"one"}
    assert shown(state="retired") == {"three"}
    assert shown(state="edited") == shown(state="differs") == shown(source="settings") == {"two"}
    assert shown(q="hre") == {"three"}
    assert shown(q="tasks.add") == {"one", "two", "three", "four"}
    assert client.get(LIST, {"state": "no such"}).status_code == 302


def test_the_list_costs_the_same_with_many_schedules():
    client, counts = viewer("run_schedule"), []
    for many in (2, 30):
        for number in range(many):
            begin(f"s{many}-{number}")
        client.get(LIST)
        with CaptureQueriesContext(connection) as captured:
            text_of(client.get(LIST))
        counts.append(len(captured.captured_queries))
    assert counts[0] == counts[1] <= 8 + LIMIT_STATEMENTS


def test_the_page_shows_the_next_ticks_and_those_that_were_decided():
    due = begin(every="10m").next_at
    with travel(to=due + timedelta(minutes=20)):
        fire()
        page = text_of(viewer().get(page_of()))
        assert page.count("<li>2") == 5
    assert job_page(Job.objects.get().pk) in page
    assert [word in page for word in ("fired", "missed", "every 10m")] == [True] * 3
    assert 'data-title="Ticks">2</td>' in page
    assert not Inline(page).found


def test_the_list_and_the_page_show_how_the_jobs_ended_to_those_who_may_see_jobs():
    due = begin(every="10m").next_at
    for minute in (0, 10):
        with travel(to=due + timedelta(minutes=minute)):
            fire()
    first, last = Job.objects.order_by("pk").values_list("pk", flat=True)
    set_columns(first, status=Job.Status.DONE, last_started_at=due, finished_at=due + timedelta(seconds=3))
    set_columns(last, status=Job.Status.FAILED, last_error="Traceback\nshop.NoRate: password=hunter2 EUR")
    with CaptureQueriesContext(connection) as captured:
        page = text_of(viewer("view_job").get(page_of()))
    assert ["ran 3s" in page, "jobqueue-done" in page, "NoRate: password=********" in page] == [True] * 3
    assert len([one for one in captured if "job_queue" in one["sql"]]) == 1
    listed = text_of(viewer("view_job", name="bob").get(LIST))
    assert ["NoRate" in listed, "hunter2" in listed, job_page(last) in listed] == [True, False, True]
    client = viewer(name="eve")
    for address in (LIST, page_of()):
        hidden = text_of(client.get(address))
        assert ["NoRate" in hidden, "ran 3s" in hidden] == [False, False]


def test_a_schedule_that_is_late_is_marked():
    begin(every="10m")
    assert "late: no worker fires it" not in text_of(viewer().get(LIST))
    Schedule.objects.update(next_at=UtcNowPlus(-300), look_at=UtcNowPlus(-300))
    page = text_of(root().get(LIST))
    assert '<span class="jobqueue-state jobqueue-expired">late: no worker fires it</span>' in page


def test_a_schedule_that_has_ended_has_no_next_tick():
    begin("ended", every=60, end_at=datetime.now(UTC) - timedelta(days=1))
    assert "its last tick has passed" in text_of(viewer().get(page_of("ended")))


def test_a_schedule_is_made_with_the_form():
    client = viewer("add_schedule", "change_schedule", "view_payload")
    assert 'name="cron"' in text_of(client.get(ADD))
    response = client.post(ADD, FORM | {"cron": "0 3 * * 1", "every": "", "jitter_seconds": "5m"}, follow=True)
    assert "made" in said(response)
    made = next(one for one in schedules.known() if one.name == "made")
    assert (made.cron, made.args, made.kwargs, made.jitter_seconds) == ("0 3 * * 1", [1, 2], {}, 300.0)
    assert (made.source, made.edited_by, made.enabled) == ("admin", "ann", True)
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.user.username) == (str(row("made").pk), "ann")


@pytest.mark.parametrize("use_tz", [True, pytest.param(False, marks=finding("S-C4"))])
def test_start_and_end_are_local_times_with_and_without_use_tz(settings, use_tz):
    settings.USE_TZ, settings.TIME_ZONE = use_tz, "Asia/Seoul"
    client = root()
    client.post(ADD, FORM | {"start_at": "2041-02-01 09:00", "end_at": "2041-03-01 09:00"})
    (made,) = schedules.known()
    assert (made.start_at, made.end_at) == (datetime(2041, 2, 1, tzinfo=UTC), datetime(2041, 3, 1, tzinfo=UTC))
    assert 'value="2041-02-01 09:00:00"' in text_of(client.get(page_of("made")))
    client.post(page_of("made"), FORM | {"start_at": "2041-02-01 09:00", "end_at": "2041-03-01 10:00"})
    (made,) = schedules.known()
    assert (made.start_at, made.end_at) == (datetime(2041, 2, 1, tzinfo=UTC), datetime(2041, 3, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cron": "0 3 * * *"}, "has both of cron and every"),
        ({"every": ""}, "has neither of cron and every"),
        ({"every": "0.5s"}, "the least is 1"),
        ({"every": "soon"}, "soon"),
        ({"every": "", "cron": "61 * * * *"}, "cannot be read"),
        ({"every": "", "cron": "0 0 30 2 *"}, "day-of-month"),
        ({"timezone": "Mars/Base"}, "is not a time zone"),
        ({"task": "os.system"}, "Select a valid choice"),
        ({"args": "[1]"}, "add"),
        ({"args": "{}"}, "This is not a JSON list."),
        ({"args": "[" * 100_000}, "This is not a JSON list."),
        ({"kwargs": "[]"}, "This is not a JSON object."),
        ({"missed": "x"}, "Select a valid choice"),
        ({"missed_limit": "0"}, "greater than or equal to 1"),
        ({"start_at": "2026-02-01 00:00", "end_at": "2026-01-01 00:00"}, "before it starts"),
        ({"name": "a\x07"}, "printable"),
        ({"name": ""}, "This field is required."),
        ({"name": "tick"}, "There is a schedule of this name."),
    ],
)
def test_wrong_values_are_named_at_the_form_and_nothing_is_written(given, words):
    begin()
    page = text_of(root().post(ADD, FORM | given))
    assert escape(words) in page.partition('class="errornote"')[2]
    assert Schedule.objects.count() == 1
    assert logged() == []


def test_a_change_of_a_schedule_of_the_code_stays_in_force_until_it_is_taken_back():
    begin(every=60)
    client = viewer("change_schedule", "view_payload")
    page = text_of(client.get(page_of()))
    assert "stays in force over deploys until it is taken back" in page
    assert "Take back the change" not in page
    assert 'name="every" value="1m"' in page
    page = text_of(client.post(page_of(), FORM | {"every": "2h", "args": "[3, 4]"}, follow=True))
    found = row()
    assert (found.edited, found.edited_by, found.source) == (True, "ann", "code")
    page = text_of(client.get(page_of()))
    for text in ("Changed by ann.", "something else: every 1m", "changed by hand; the code differs"):
        assert text in page, text
    versions.announce(USING)
    assert schedules.known()[0].every_seconds == 7200
    assert "The change of 1 schedule was taken back." in said(do(client, "revert", "tick"))
    assert [schedules.known()[0].every_seconds, row().edited] == [60, False]
    assert "could be taken back" in said(do(client, "revert", "tick"))


def test_a_change_keeps_what_the_form_does_not_show():
    begin(every=90.0005, args=(1, 2))
    schedules.disable("tick", reason="later")
    client = viewer("change_schedule")
    page = text_of(client.get(page_of()))
    assert 'name="args"' not in page
    values = {key: value for key, value in FORM.items() if key not in ("name", "args", "kwargs")}
    shown = re.search(r'name="every" value="([^"]*)"', page)[1]
    client.post(page_of(), values | {"every": shown, "overlap": "skip", "args": "[5, 6]", "name": "other"})
    (found,) = schedules.known()
    assert (found.name, found.args, found.every_seconds, found.overlap) == ("tick", [1, 2], 90.0005, "skip")
    assert (found.enabled, found.reason) == (False, "later")


def test_arguments_are_shown_with_the_permission_to_see_payloads_only():
    begin(task=tasks.add, args=("top", "secret-word"))
    assert "secret-word" not in text_of(viewer().get(page_of()))
    for more in ((), ("change_schedule",)):
        client = client_of(person("view_schedule", "view_payload", *more, name=f"bob{len(more)}"))
        assert "secret-word" in text_of(client.get(page_of()))
    assert "secret-word" not in text_of(client.get(LIST))


def test_secrets_in_arguments_are_masked_in_the_form_and_kept_by_it():
    begin(task=tasks.greet, args=("token=hidden-text", 3))
    client = viewer("change_schedule", "view_payload")
    page = text_of(client.get(page_of()))
    assert "hidden-text" not in page
    assert escape('["token=********", 3]') in page
    given = EVERY | {"task": "tests.app.tasks.greet", "jitter_seconds": "0s", "kwargs": "{}"}
    for args in ('["token=********", 3]', '["token=********", 4]'):
        assert client.post(page_of(), given | {"args": args}).status_code == 302
    assert arguments_of(from_json(row("tick").definition)) == (["token=hidden-text", 4], {})
    refused = text_of(client.post(page_of(), given | {"args": '["pw=********", 4]'}))
    assert "stands for a secret" in refused


class TestAnotherTask:
    """Whoever may change a schedule could choose a task that tells the secrets of its arguments."""

    ARGUMENTS = {"args": '["token=********", 3]', "kwargs": "{}"}

    def post(self, client, task, arguments):
        begin(task=tasks.greet, args=("token=hidden-text", 3))
        given = EVERY | {"task": task, "jitter_seconds": "0s"} | arguments
        return client.post(page_of(), given)

    def test_does_not_get_secrets_that_were_left_masked(self):
        client = viewer("change_schedule", "view_payload")
        refused = text_of(self.post(client, "tests.app.tasks.add", self.ARGUMENTS))
        assert "Another task does not get secrets" in refused
        assert row("tick").task == "tests.app.tasks.greet"

    def test_does_not_get_secrets_from_somebody_who_sees_no_arguments(self):
        refused = text_of(self.post(viewer("change_schedule"), "tests.app.tasks.add", {}))
        assert "Another task does not get secrets" in refused
        assert row("tick").task == "tests.app.tasks.greet"

    def test_gets_arguments_that_are_written_anew(self):
        client = viewer("change_schedule", "view_payload")
        given = {"args": "[1, 2]", "kwargs": "{}"}
        assert self.post(client, "tests.app.tasks.add", given).status_code == 302
        assert row("tick").task == "tests.app.tasks.add"


def test_run_now_adds_a_job_and_is_recorded():
    begin()
    client = viewer("run_schedule")
    assert "1 job was added." in said(do(client, "run_now", "tick"))
    assert Job.objects.count() == 1
    entry = LogEntry.objects.get()
    assert (entry.change_message, entry.object_id) == ("run now (was enabled)", str(row().pk))


def test_disabling_asks_for_a_reason_and_enabling_fires_again():
    begin()
    client = viewer("run_schedule")
    assert "give a reason" in said(do(client, "disable", "tick"))
    assert "give a reason" in said(do(client, "disable", "tick", reason="x" * 201))
    assert row().enabled
    assert "1 schedule was disabled" in said(do(client, "disable", "tick", reason="too loud"))
    assert [row().enabled, row().reason] == [False, "too loud"]
    assert "Only" not in said(do(client, "disable", "tick", reason="again"))
    assert "1 schedule was enabled" in said(do(client, "enable", "tick"))
    assert [row().enabled, row().reason] == [True, ""]
    assert logged() == ["disable: too loud (was enabled)", "enable (was disabled)"]


def test_the_buttons_of_the_page_return_to_it():
    begin()
    client = viewer("run_schedule")
    page = text_of(client.get(page_of()))
    assert [f'value="{verb}"' in page for verb in ("run_now", "disable", "enable", "revert")] == [
        True,
        True,
        False,
        False,
    ]
    assert 'name="reason"' in page
    response = act(client, "disable", row().pk, path=LIST, reason="r", jobqueue_page="1")
    assert response["Location"] == page_of()


def test_a_retired_schedule_does_not_run_and_cannot_be_changed():
    begin()
    Schedule.objects.update(retired_at=row().created_at)
    client = root()
    assert "its state does not allow it: retired" in said(do(client, "run_now", "tick"))
    assert 'name="every"' not in text_of(client.get(page_of()))
    assert client.post(page_of(), FORM).status_code == 403
    assert not Job.objects.exists()


def test_without_the_permissions_nothing_is_offered_and_nothing_is_done():
    begin()
    client = viewer()
    page = text_of(client.get(page_of()))
    assert 'name="every"' not in page
    assert 'name="action"' not in page
    assert ADD not in text_of(client.get(LIST))
    assert [client.get(ADD).status_code, client.post(ADD, FORM).status_code] == [403, 403]
    assert client.post(page_of(), FORM).status_code == 403
    for verb in ("run_now", "disable", "enable", "revert"):
        do(client, verb, "tick", reason="r")
    assert (Job.objects.count(), row().enabled, row().edited, logged()) == (0, True, False, [])
    assert client_of(person("view_job", name="eve")).get(LIST).status_code == 403
    assert client_of(None).get(LIST).status_code == 302


def test_who_may_run_may_not_change_and_who_may_change_may_not_run():
    begin()
    assert viewer("run_schedule").post(page_of(), FORM).status_code == 403
    do(client_of(person("view_schedule", "change_schedule", name="bob")), "run_now", "tick")
    assert not Job.objects.exists()


def test_a_post_of_another_site_is_refused():
    assert root(enforce_csrf_checks=True).post(ADD, FORM).status_code == 403


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (DatabaseBusy("busy"), "Nothing was changed; try again later."),
        (OperationalError("gone"), "Nothing was changed; try again later."),
        (InvalidValue("its jobs belong to another database"), "its jobs belong to another database"),
    ],
)
def test_a_write_that_is_refused_shows_the_form_again_with_what_was_typed(monkeypatch, error, words):
    def refuse(*args, **kwargs):
        raise error

    monkeypatch.setattr(editing, "save", refuse)
    page = text_of(root().post(ADD, FORM))
    assert words in page.partition('class="errornote"')[2]
    assert 'name="name" value="made"' in page
    assert logged() == []


def test_a_page_that_cannot_be_read_does_not_lead_to_itself(monkeypatch):
    begin()

    def refuse(*args, **kwargs):
        raise DatabaseBusy("busy")

    monkeypatch.setattr(ScheduleAdmin, "get_object", refuse)
    with pytest.raises(DatabaseBusy):
        root().get(page_of())


def test_a_definition_of_a_newer_version_cannot_be_changed():
    begin(args=(1, 2))
    Schedule.objects.update(definition={"other": 1})
    values = {key: value for key, value in FORM.items() if key not in ("name", "args", "kwargs")}
    page = text_of(client_of(person("view_schedule", "change_schedule")).post(page_of(), values))
    assert "A newer version of the package has written it" in page.partition('class="errornote"')[2]
    assert row().definition == {"other": 1}


@pytest.mark.parametrize("text", HOSTILE)
def test_names_reasons_and_arguments_of_others_are_shown_as_text(text):
    name = text.replace("\u202e", "x")
    begin(name, args=(text, {text: text}))
    schedules.disable(name, reason=text)
    Schedule.objects.update(edited=True, edited_by=text, announced_digest="gone")
    client = root()
    do(client, "enable", name)
    do(client, "disable", name, reason=text)
    for path in (LIST, page_of(name), f"{LIST}{row(name).pk}/history/"):
        page = text_of(client.get(path))
        assert SCRIPT not in page
        assert not Inline(page).found
        assert [t for t, attrs in Inline(page).tags if t == "img" and attrs.get("src") == "x"] == []
    page = text_of(client_of(person("view_schedule", "view_payload")).get(page_of(name)))
    assert SCRIPT not in page
    assert escape(json.dumps(text, ensure_ascii=False).replace("\u202e", "\\u202e")) in page


def test_a_definition_of_a_newer_version_is_no_error_page():
    begin()
    Schedule.objects.update(definition={"other": 1})
    client = root()
    for path in (LIST, page_of()):
        assert "A newer version of the package has written it" in text_of(client.get(path))


def test_a_task_that_this_process_does_not_know_is_shown_and_refused():
    begin()
    Schedule.objects.update(task="gone.tasks.run")
    client = root()
    assert '<option value="gone.tasks.run" selected>' in text_of(client.get(page_of()))
    page = text_of(client.post(page_of(), FORM | {"task": "gone.tasks.run"}))
    assert "This process does not know the task" in page


def test_the_pages_are_korean(settings):
    settings.LANGUAGE_CODE = "ko"
    begin()
    with translation.override("ko"):
        client = root()
        pages = [text_of(client.get(path)) for path in (LIST, page_of(), ADD)]
        assert "작업 1개를 추가했습니다." in said(do(client, "run_now", "tick"))
    for text in ("다음 틱", "일정", "사용 중"):
        assert text in pages[0], text
    for page in pages:
        for text in ("ext tick", "New schedule", "Take back", "enabled</", "Reason:", "missed ticks"):
            assert text not in page, text


def test_a_schedule_that_only_this_process_declares_is_not_listed():
    declare("mine", tasks.add, (1, 2), None, {"every": 60}, "code")
    assert "mine</a>" not in text_of(viewer().get(LIST))
    withdraw("mine")
