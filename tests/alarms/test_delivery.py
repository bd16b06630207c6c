"""Who is told of an alarm: each recipient once when it begins and once when it ends, whatever the others do."""

import logging
import threading
from datetime import UTC, datetime

import django
import pytest

from jobqueue.alarms import Alarm, delivery
from jobqueue.alarms.delivery import Told, is_anything_due, tell_due
from jobqueue.alarms.looking import Looked
from jobqueue.conf import load
from jobqueue.conf.alarms import Recipient
from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import Job, JobAlarm
from tests.alarms.helpers import look_again, now_due
from tests.alarms.receivers import http_receiver, smtp_sink
from tests.factories import make_jobs
from tests.patience import patient

pytestmark = pytest.mark.django_db
SMTP = "django.core.mail.backends.smtp.EmailBackend"
heard = []


def hook(alarm):
    """A function of the project."""
    heard.append(alarm)


def leaking_hook(alarm):
    """One whose error has a password."""
    raise OSError("no answer from https://ops:hunter2@pager.example/")


def broken_hook(alarm):
    """One that raises."""
    raise RuntimeError("no pager today")


@pytest.fixture(autouse=True)
def nothing_heard():
    heard.clear()
    delivery._running.clear()


@pytest.fixture
def sink(settings):
    with smtp_sink() as server:
        options = {"host": "127.0.0.1", "port": server.port, "timeout": patient()}
        if django.VERSION >= (6, 1):
            settings.MAILERS = {"default": {"BACKEND": SMTP, "OPTIONS": options}}
        else:
            settings.EMAIL_BACKEND = SMTP
            settings.EMAIL_HOST, settings.EMAIL_PORT, settings.EMAIL_TIMEOUT = options.values()
        yield server


@pytest.fixture
def receiver():
    with http_receiver() as server:
        yield server


@pytest.fixture
def notify(settings):
    """An alarm that fires, about which these are to be told; the call lets it end."""

    def begin(*given):
        settings.ADMINS = ["admin@example.com" if django.VERSION >= (6, 0) else ("ops", "admin@example.com")]
        settings.JOBQUEUE = {"ALARMS": {"mail": {"ready": 3}, "NOTIFY": list(given)}}
        make_jobs(5, "mail")
        look_again()
        assert look_again() == Looked(begun=1)
        return end

    def end():
        Job.objects.all().delete()
        look_again()
        assert look_again() == Looked(ended=1)

    return begin


def tell():
    return tell_due(load(), using="default")


def test_everybody_is_told_once_when_it_begins_and_once_when_it_ends(notify, sink, receiver, caplog):
    everybody = ("log", "mail", {"MAIL": ["ops@example.com"]}, {"WEBHOOK": receiver.url})
    end = notify(*everybody, {"HOOK": "tests.alarms.test_delivery.hook"})
    with caplog.at_level(logging.INFO, "jobqueue.alarms"):
        assert tell() == Told(told=5)
        assert tell() == Told()
        assert not is_anything_due(using="default")
        look_again()
        assert tell() == Told()
        end()
        assert is_anything_due(using="default")
        assert tell() == Told(told=5)
        assert tell() == Told()
    fires, over = caplog.messages
    assert fires.startswith("alarm fires: queue mail: ready, value 5, threshold 3, since ")
    assert fires.endswith("see docs/runbook/queue-backs-up.md")
    assert over.startswith("alarm is over: queue mail: ready, value 0")
    first, second, third, fourth = sink.mails
    assert (first["To"], second["To"]) == ("admin@example.com", "ops@example.com")
    assert second["Subject"].endswith("alarm fires: mail ready")
    assert "runbook: docs/runbook/queue-backs-up.md" in third.get_content()
    assert fourth["Subject"].endswith("alarm over: mail ready")
    (path, headers, one), (_, _, two) = receiver.requests
    assert (path, headers["Content-Type"]) == ("/alarms", "application/json")
    assert (one["version"], one["state"], one["queue"], one["value"], one["incident"]) == (1, "firing", "mail", 5, 1)
    assert (two["state"], two["since"], two["incident"]) == ("ended", one["since"], 1)
    assert [alarm.ended_at is None for alarm in heard] == [True, False]
    assert JobAlarm.objects.get(queue="mail").notices == []


def test_a_webhook_that_answers_500_is_tried_again_and_the_mail_is_not_repeated(notify, sink, receiver, caplog):
    receiver.status = 500
    end = notify({"WEBHOOK": receiver.url}, {"MAIL": ["ops@example.com"]})
    assert tell() == Told(told=1, failed=1)
    assert tell() == Told()
    assert "HTTP Error 500" in caplog.text
    assert receiver.url not in caplog.text
    now_due()
    assert tell() == Told(failed=1)
    end()
    # The end is told to the mail alone: the webhook does not know the beginning yet.
    assert tell().told == 1
    receiver.status = 204
    now_due()
    assert tell() == Told(told=2)
    assert [body["state"] for _, _, body in receiver.requests[-2:]] == ["firing", "ended"]
    assert len(sink.mails) == 2


def test_a_receiver_that_hangs_holds_up_nobody_else(notify, sink, receiver, monkeypatch):
    monkeypatch.setattr(delivery, "WEBHOOK_SECONDS", 60.0)
    monkeypatch.setattr(delivery, "TELL_SECONDS", patient(0.2))
    receiver.hangs = True
    notify({"WEBHOOK": receiver.url}, "log")
    assert tell() == Told(told=1, failed=1)
    (thread,) = [one for one in delivery._running.values() if one.is_alive()]
    # It is not tried again while the last try still waits.
    now_due()
    assert tell() == Told()
    receiver.hangs = False
    receiver.released.set()
    thread.join(patient())
    monkeypatch.setattr(delivery, "TELL_SECONDS", patient())
    now_due()
    assert tell() == Told(told=1)
    assert len(receiver.requests) == 2


def test_a_webhook_has_a_timeout_of_its_own(notify, receiver, monkeypatch):
    monkeypatch.setattr(delivery, "WEBHOOK_SECONDS", 0.2)
    receiver.hangs = True
    notify({"WEBHOOK": receiver.url})
    assert tell() == Told(failed=1)
    assert not receiver.released.is_set(), "it has waited until there was an answer"
    assert JobAlarm.objects.get(queue="mail").notices[0]["pending"].popitem()[1]["error"] == "TimeoutError: timed out"


@pytest.mark.parametrize("place", ["file:///etc/hostname", "{url}/elsewhere"])
def test_a_redirect_is_an_error(notify, receiver, place):
    receiver.status, receiver.location = 302, place.format(url=receiver.url)
    notify({"WEBHOOK": receiver.url})
    assert tell() == Told(failed=1)
    assert len(receiver.requests) == 1


def test_alarms_that_one_recipient_cannot_be_told_keep_back_none_from_the_others(settings, monkeypatch):
    """However many there are: a pass goes on behind those of which something is still to be told."""
    monkeypatch.setattr(delivery, "ROWS_MAX", 1)
    hooks = [{"HOOK": f"tests.alarms.test_delivery.{name}"} for name in ("broken_hook", "hook")]
    settings.JOBQUEUE = {"ALARMS": {"*": {"ready": 3}, "NOTIFY": hooks}}
    for queue in ("a", "b", "c"):
        make_jobs(5, queue)
    look_again()
    assert look_again() == Looked(begun=3)
    assert tell() == Told(told=3, failed=1)
    assert sorted(alarm.queue for alarm in heard) == ["a", "b", "c"]


def test_a_hook_that_raises_is_tried_again(notify, caplog):
    notify({"HOOK": "tests.alarms.test_delivery.broken_hook"}, {"HOOK": "tests.alarms.test_delivery.hook"})
    assert tell() == Told(told=1, failed=1)
    assert "no pager today" in caplog.text
    now_due()
    assert tell() == Told(failed=1)
    assert len(heard) == 1


def test_an_error_is_logged_and_kept_without_the_secrets_in_it(notify, caplog):
    notify({"HOOK": "tests.alarms.test_delivery.leaking_hook"})
    assert tell() == Told(failed=1)
    assert "https://ops:********@pager.example/" in caplog.text
    assert "hunter2" not in caplog.text + str(JobAlarm.objects.get(queue="mail").notices)


def test_no_recipient_gets_the_secret_in_the_name_of_a_queue(sink, receiver, caplog):
    alarm = Alarm("password=hunter2", "ready", 5, 3, datetime(2026, 1, 31, tzinfo=UTC), 1)
    with caplog.at_level(logging.INFO):
        for recipient in [("log", ()), ("WEBHOOK", (receiver.url,)), ("MAIL", ("ops@example.com",))]:
            delivery.tell(Recipient(*recipient), alarm)
    ((_, _, posted),), (mail,) = receiver.requests, sink.mails
    for told in (caplog.text, str(posted), mail["Subject"], mail.get_content()):
        assert "password=********" in told
        assert "hunter2" not in told


def test_a_process_that_is_killed_while_it_tells_repeats_that_notice_only(notify, monkeypatch, caplog):
    notify({"HOOK": "tests.alarms.test_delivery.hook"}, "log")
    with monkeypatch.context() as patch:
        # It was told, and its process ends before that is written.
        note = delivery._note

        def die(pk, notice, key, *rest):
            if key.startswith("HOOK"):
                raise KeyboardInterrupt
            note(pk, notice, key, *rest)

        patch.setattr(delivery, "_note", die)
        with pytest.raises(KeyboardInterrupt):
            tell()
    assert len(heard) == 1
    # The other recipients. Some databases would have returned the row of the log first.
    tell()
    assert len(heard) == 1
    now_due()
    assert tell() == Told(told=1)
    assert [alarm.incident for alarm in heard] == [1, 1]
    assert len([line for line in caplog.messages if line.startswith("alarm fires")]) == 1


def test_what_nobody_could_be_told_for_a_day_is_dropped_and_logged(notify, receiver, caplog):
    receiver.status = 500
    notify({"WEBHOOK": receiver.url})
    row = JobAlarm.objects.get(queue="mail")
    row.notices[0]["at"] = "2000-01-01T00:00:00+00:00"
    row.save()
    assert tell() == Told()
    assert "gave up notifying WEBHOOK" in caplog.text
    assert not is_anything_due(using="default")
    assert receiver.requests == []


def test_one_who_left_the_settings_is_not_told_and_holds_up_nobody(notify, settings):
    notify({"HOOK": "tests.alarms.test_delivery.broken_hook"})
    settings.JOBQUEUE = {"ALARMS": {"mail": {"ready": 3}, "NOTIFY": ["log"]}}
    assert tell() == Told()


def test_the_rows_show_no_url(notify, receiver):
    notify({"WEBHOOK": f"{receiver.url}?token=secret"})
    assert "secret" not in str(JobAlarm.objects.get(queue="mail").notices)
    JobAlarm.objects.update(send_at=UtcNowPlus(-1))
    assert tell() == Told(told=1)
    assert threading.active_count() < 50
