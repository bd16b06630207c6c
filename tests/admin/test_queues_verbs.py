"""Pause, resume, drain and limits from the admin: by POST alone, each with its permission, recorded in the history."""

from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.db import OperationalError
from django.utils import timezone

from jobqueue import enqueue, enqueue_many, flow
from jobqueue.db.clock import read_now
from jobqueue.exceptions import DatabaseBusy, OutcomeUnknown, QueueFull
from jobqueue.flow import drain, limits, pause, paused, set_limit
from jobqueue.maintenance.worker_rows import register
from jobqueue.models import FlowRule, Worker
from jobqueue.transitions import claim
from tests.admin.helpers import client_of, person, root, text_of
from tests.app import tasks

pytestmark = pytest.mark.django_db

QUEUES = "/admin/jobqueue/flowrule/"
PAGE = f"{QUEUES}queue/"
MAIL = f"{PAGE}?queue=mail"
TASK = tasks.add.module_path
MAIL_TASK = f"{MAIL}&task={TASK}"
#: a POST of each verb
POSTS = {
    "pause": {"reason": "a deploy"},
    "drain": {"reason": "a deploy"},
    "resume": {},
    "limit": {"concurrency": "5"},
    "clear": {},
}
PERMISSION = {"pause": "pause_queue", "drain": "pause_queue", "resume": "pause_queue",
              "limit": "change_limits", "clear": "change_limits"}  # fmt: skip


def post(client, verb, page=MAIL, follow=False, **data):
    return client.post(page, {"verb": verb, **data}, follow=follow)


def told(client, verb, page=MAIL, **data):
    """The messages after the page has come back."""
    response = post(client, verb, page, follow=True, **data)
    assert response.redirect_chain == [(page, 302)], text_of(response)
    return [str(message) for message in response.context["messages"]]


def errors(client, verb, page=MAIL, **data):
    """What the form says is wrong; nothing is written and nobody is led elsewhere."""
    before = list(FlowRule.objects.values())
    response = post(client, verb, page, **data)
    assert list(FlowRule.objects.values()) == before
    assert not LogEntry.objects.exists()
    form = response.context["limits" if verb == "limit" else "reasons"]
    assert "Correct what is marked below. Nothing was written." in text_of(response)
    return {name: found[0] for name, found in form.errors.items()}


def history():
    return [(one.object_repr, one.get_change_message(), one.user.username) for one in LogEntry.objects.order_by("pk")]


def what_is_set():
    return [(one.queue, one.task, one.mode, one.reason, one.by) for one in paused()], limits()


def test_pause_needs_a_reason_starts_nothing_more_and_is_recorded():
    enqueue_many("mail", range(3))
    claim("mail", 2, worker="w")
    client = root()
    assert told(client, "pause", reason=" a deploy ") == ["Queue mail is paused; 2 jobs that run go on."]
    assert what_is_set()[0] == [("mail", None, "paused", "a deploy", "root")]
    assert claim("mail", 1, worker="w") == []
    assert history() == [("queue mail", "pause: a deploy", "root")]
    page = text_of(client.get(MAIL))
    assert "Resume the queue" in page
    assert "pause: a deploy" in page


@pytest.mark.parametrize(("until", "hours"), [("2h", 2), ("2190-01-31T18:00+09:00", None)])
def test_a_pause_ends_by_itself_after_a_duration_or_at_a_time(until, hours):
    (said,) = told(root(), "pause", reason="r", until=until)
    assert "It resumes by itself at " in said
    (found,) = paused()
    if hours is None:
        assert found.until.isoformat() == "2190-01-31T09:00:00+00:00"
    else:
        assert timedelta(minutes=119) < found.until - read_now("default") <= timedelta(hours=2)
    assert "pause until " in history()[0][1]


def test_a_time_without_an_offset_is_in_the_time_zone_of_the_page():
    with timezone.override("Asia/Seoul"):
        client = root()
        assert "2026-01-31 18:00 (Asia/Seoul)" in text_of(client.get(MAIL))
        post(client, "pause", reason="r", until="2190-01-31 18:00")
    assert paused()[0].until.isoformat() == "2190-01-31T09:00:00+00:00"


def test_resume_ends_a_pause_and_a_second_one_changes_nothing():
    pause("mail", reason="r")
    client = root()
    assert told(client, "resume") == ["Queue mail is resumed."]
    assert paused() == []
    assert told(client, "resume") == ["Queue mail was neither paused nor draining; nothing was changed."]
    assert history() == [("queue mail", "resume", "root")]
    assert "Resume the queue" not in text_of(client.get(MAIL))


def test_drain_refuses_producers():
    assert told(root(), "drain", reason="it goes")[0].startswith("Queue mail is draining: new jobs are refused")
    with pytest.raises(QueueFull):
        enqueue("mail", 1)
    assert history() == [("queue mail", "drain: it goes", "root")]


def test_limits_are_set_shown_and_cleared():
    client = root()
    said = "At most 5 jobs of queue mail run at once. Jobs of queue mail start at no more than 10/s."
    assert told(client, "limit", concurrency=" 5 ", rate="10/s") == [said]
    assert [(one.concurrency, one.rate) for one in limits()] == [(5, "10/s")]
    page = text_of(client.get(MAIL))
    assert 'placeholder="5"' in page
    assert "Clear limits" in page
    told(client, "limit", concurrency="none")
    assert [(one.concurrency, one.rate) for one in limits()] == [(None, "10/s")]
    assert told(client, "clear") == ["Queue mail has the limits of the settings again."]
    assert told(client, "clear") == ["No limit was set for queue mail; nothing was changed."]
    assert [what for _, what, _ in history()] == [
        "limit: concurrency 5, rate 10/s",
        "limit: concurrency none",
        "clear limits",
    ]


@pytest.mark.parametrize("data", [{"concurrency": "0"}, {"rate": "0"}])
def test_a_limit_of_0_says_that_the_queue_is_paused(data):
    client = root()
    said = "Queue mail is paused; none of its jobs is running. Set another limit, or clear it, to start jobs again."
    assert told(client, "limit", **data) == [said]
    assert "its limit is 0" in text_of(client.get(MAIL))
    assert told(client, "pause", reason="r")[0].endswith("A limit of 0 pauses it, too.")
    assert told(client, "resume") == ["Queue mail is resumed. It is still paused by a limit of 0."]


def test_a_limit_that_a_worker_does_not_know_is_called_partial():
    register("old", supervisor_pid=1, boot_id="b", queues="*", concurrency=1, using="default")
    Worker.objects.update(gates=None)
    assert "This is partial: 1 running worker does not know it." in told(root(), "limit", rate="1/s")[0]


def test_a_task_in_a_queue_has_its_own_page_pause_and_limits():
    client = root()
    assert told(client, "pause", MAIL_TASK, reason="r") == [
        f"Task {TASK} of queue mail is paused; jobs that run go on."
    ]
    told(client, "limit", MAIL_TASK, concurrency="2")
    assert what_is_set()[0] == [("mail", TASK, "paused", "r", "root")]
    assert told(client, "resume", MAIL_TASK) == [f"Task {TASK} of queue mail is resumed."]
    assert "the limits of its code again" in told(client, "clear", MAIL_TASK)[0]
    assert {name for name, _, _ in history()} == {f"{TASK} in queue mail"}
    page = text_of(client.get(MAIL_TASK))
    assert "as in its code" in page
    assert 'value="drain"' not in page


def test_a_task_that_this_process_does_not_know_leads_back_to_the_list_with_a_sentence():
    response = root().get(f"{MAIL}&task=tests.app.tasks.ad", follow=True)
    assert response.redirect_chain == [(QUEUES, 302)]
    assert "No task is called" in text_of(response)


@pytest.mark.parametrize("verb", ["pause", "drain"])
@pytest.mark.parametrize(
    ("data", "field", "why"),
    [
        ({"reason": " "}, "reason", "This field is required."),
        ({"reason": "x" * 201}, "reason", "Ensure this value has at most 200 characters (it has 201)."),
        ({"reason": "r", "until": "tomorrow"}, "until", "This is neither a duration nor a time."),
        ({"reason": "r", "until": "0"}, "until", "This is neither a duration nor a time."),
        ({"reason": "r", "until": "2001-01-31 18:00"}, "until", "This time has passed."),
    ],
)
def test_a_wrong_reason_or_end_is_refused(verb, data, field, why):
    assert errors(root(), verb, **data)[field].startswith(why)


def test_a_drain_with_an_end_and_one_of_a_task_are_refused():
    client, why = root(), "Only a whole queue can drain, and without an end. Nothing was written."
    assert errors(client, "drain", reason="r", until="2h") == {"__all__": why}
    assert errors(client, "drain", MAIL_TASK, reason="r") == {"__all__": why}


@pytest.mark.parametrize(
    ("data", "field", "why"),
    [
        ({}, "__all__", "Give a concurrency, a rate or both."),
        ({"concurrency": "-1"}, "concurrency", "Write a whole number from 0, or none."),
        ({"concurrency": "9999999999"}, "concurrency", "Write a whole number from 0, or none."),
        ({"concurrency": "\u0661"}, "concurrency", "Write a whole number from 0, or none."),
        ({"rate": "10/x"}, "rate", "This is not a rate. Write 50/s, 100/m or 5/30s."),
        ({"rate": "x" * 30}, "rate", "Ensure this value has at most 20 characters (it has 30)."),
    ],
)
def test_a_wrong_limit_is_refused(data, field, why):
    assert errors(root(), "limit", **data) == {field: why}


@pytest.mark.parametrize("verb", ["", "stop", "_apply"])
def test_a_verb_of_no_button_is_refused(verb):
    assert post(root(), verb, reason="r").status_code == 400
    assert what_is_set() == ([], [])


@pytest.mark.parametrize("verb", POSTS)
def test_each_verb_needs_its_permission_and_the_one_to_see_queues(verb):
    pause("mail", reason="r")
    set_limit("mail", concurrency=3)
    before, needed = what_is_set(), PERMISSION[verb]
    others = sorted({"pause_queue", "change_limits"} - {needed})
    for number, granted in enumerate((["view_flowrule", *others], [needed], ["view_job", needed], [])):
        client = client_of(person(*granted, name=f"p{number}"))
        assert post(client, verb, **POSTS[verb]).status_code == 403
        assert f'value="{verb}"' not in client.get(MAIL).content.decode()
    assert post(client_of(None), verb, **POSTS[verb]).status_code == 302
    assert post(client_of(person(needed, "view_flowrule", staff=False)), verb, **POSTS[verb]).status_code == 302
    assert (what_is_set(), LogEntry.objects.count()) == (before, 0)


@pytest.mark.parametrize("verb", POSTS)
def test_one_permission_gives_its_verbs(verb):
    drain("mail", reason="r", by="kim")
    set_limit("mail", concurrency=3)
    before, client = what_is_set(), client_of(person("view_flowrule", PERMISSION[verb]))
    shown = text_of(client.get(MAIL))
    assert {name for name in POSTS if f'value="{name}"' in shown} == {
        name for name in POSTS if PERMISSION[name] == PERMISSION[verb]
    }
    assert post(client, verb, **POSTS[verb]).status_code == 302
    assert what_is_set() != before


@pytest.mark.parametrize("granted", [["pause_queue", "change_limits", "view_job"], []])
def test_without_the_permission_to_see_queues_no_page_is_shown(granted):
    pause("mail", reason="r")
    client = client_of(person(*granted))
    row = FlowRule.objects.get().pk
    for path in (QUEUES, MAIL, MAIL_TASK, f"{QUEUES}{row}/change/", f"{QUEUES}{row}/history/"):
        assert client.get(path).status_code == 403, path


def test_a_get_changes_nothing():
    client = root()
    for verb, data in POSTS.items():
        for method in (client.get, client.head, client.options):
            method(MAIL, {"queue": "mail", "verb": verb, **data})
    assert what_is_set() == ([], [])


def test_a_post_needs_the_csrf_token():
    client = root(enforce_csrf_checks=True)
    assert post(client, "pause", reason="r").status_code == 403
    assert paused() == []
    client.get(MAIL)
    token = client.cookies["csrftoken"].value
    assert post(client, "pause", reason="r", csrfmiddlewaretoken=token).status_code == 302


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (DatabaseBusy("busy"), "Nothing was changed; try again later."),
        (OperationalError("gone"), "Nothing was changed; try again later."),
        (OutcomeUnknown("broken"), "Whether it was written is unknown"),
    ],
)
def test_a_database_that_refuses_the_write_is_no_error_page(monkeypatch, error, said):
    def refuse(*args, **kwargs):
        raise error

    monkeypatch.setattr(flow, "pause", refuse)
    page = text_of(post(root(), "pause", reason="kept in the form"))
    assert said in page
    assert 'value="kept in the form"' in page
    assert not LogEntry.objects.exists()


def test_a_long_user_name_is_cut():
    client = client_of(person("view_flowrule", "pause_queue", name="u" * 150))
    post(client, "pause", reason="r")
    assert paused()[0].by == "u" * 150


def test_the_page_and_its_sentences_are_korean(settings):
    settings.LANGUAGE_CODE = "ko"
    enqueue("mail", 1)
    claim("mail", 1, worker="w")
    client = root()
    assert told(client, "pause", reason="배포") == ["mail 큐가 일시 중지되었습니다. 실행 중인 작업 1개는 계속됩니다."]
    page = text_of(client.get(MAIL))
    for words in ("큐 재개", "일시 중지됨", "배포", "제한 설정", "최근 변경"):
        assert words in page
    assert "서킷 브레이커" in text_of(client.get(QUEUES))
