"""A row with all secrets at each place that a text can get to, and all that is shown of these rows."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from io import StringIO
from unittest.mock import patch
from urllib.parse import unquote

from django.core.management import CommandError, call_command
from django.db import transaction

from jobqueue import dead_letters, enqueue, flow, workflow
from jobqueue.alarms import delivery
from jobqueue.conf.alarms import Recipient
from jobqueue.db.clock import UtcNow, read_now
from jobqueue.idempotency import once
from jobqueue.models import IdempotencyRecord, Job, JobAlarm, JobTag, LockRow, MutexRow, OutboxEvent, Schedule, Worker
from jobqueue.outbox import publish
from jobqueue.schedules import disable, versions
from jobqueue.schedules.declaring import declare, withdraw
from jobqueue.transitions import ack, claim, fail
from tests.admin.helpers import job_page
from tests.app import tasks
from tests.browser.pages import Pages
from tests.factories import claim_one, job, make_job, set_columns
from tests.lockstats.test_lock_activity import count_keys
from tests.masking.secrets import SECRETS, S

QUEUE, SCHEDULE, TOPIC, BREAKER = "everywhere", "nightly", "order.paid", "bank"
#: of a key and of a tag
SHORT = 64
ALL = "\n".join(f"{text}\n" for text, _ in SECRETS)
#: secrets as values in JSON: alone, in a list, and below a key that tells nothing
VALUE = {"notes": [text for text, _ in SECRETS], "by_id": {str(n): text for n, (text, _) in enumerate(SECRETS)}}
#: the places, in words
PLACES = (
    "payload", "result", "options", "progress", "error", "traceback of an attempt", "log line", "tag", "dedupe key",
    "ordering key", "concurrency key", "wait reason", "note on a failure", "reason of a pause", "reason of a breaker",
    "filter and reason of a redrive", "delivery error of an alarm", "arguments of a schedule", "reason of a schedule",
    "name of a group", "name of a node", "payload of an event", "key of an event", "error of an event",
    "label of a request", "result of a request", "key of a lock", "owner of a lock", "stop reason of a worker",
)  # fmt: skip


def in_one_line(most: int) -> list[str]:
    """All secrets that have a line of their own, in as few texts of at most so many characters as they fit in."""
    found: list[str] = []
    for text, _secret in sorted(SECRETS, key=lambda one: len(one[0])):
        if "\n" in text or len(text.encode()) > most:
            continue
        if found and len(f"{found[-1]} {text}".encode()) <= most:
            found[-1] += f" {text}"
        else:
            found.append(text)
    return found


def leaks(shown: str) -> list[str]:
    """The secrets that a page or what a command has printed shows, also in its addresses."""
    text = unquote(html.unescape(shown))
    return [whole for whole, secret in SECRETS if secret in text]


def fill() -> list[int]:
    """Put the secrets everywhere; the ids of jobs whose pages together show all of them."""
    for text in in_one_line(SHORT):
        enqueue(QUEUE, {"n": 1}, dedupe_key=text, ordering_key=text)
    keyed = list(Job.objects.filter(queue=QUEUE).order_by("pk").values_list("pk", flat=True))
    for job_id, text in zip(keyed, in_one_line(SHORT), strict=True):
        progress = {"done": 1, "total": 2, "note": text}
        set_columns(job_id, concurrency_key=text.encode(), released_key=text.encode(), progress=progress)
    ended = _jobs()
    JobTag.objects.bulk_create(JobTag(job_id=keyed[0], tag=text) for text in in_one_line(SHORT))
    _controls()
    _alarm()
    _schedule()
    _group()
    _outbox()
    _others()
    return [*keyed, *ended]


def _jobs() -> list[int]:
    """One that failed, one that was done, one that runs, and one that waits for a reason."""
    lines = "\n".join(text.replace("\n", " ") for text, _ in SECRETS)
    failed = make_job("mail", VALUE, max_attempts=2, task=tasks.greet.module_path)
    for _ in range(2):
        lease = claim_one("mail", worker="w1")
        fail(lease, error=f"Traceback (most recent call last):\n{ALL}ValueError: {lines}", log=ALL, delay_seconds=0)
    dead_letters.note(job(failed).fingerprint, ALL[:1900], by="root")
    done = make_job("mail", VALUE)
    ack(claim_one("mail", worker="w1"), result=VALUE)
    running = make_job("mail", VALUE)
    claim("mail", worker="w1", lease_seconds=3600)
    set_columns(running, progress={"done": 1, "total": 2, "note": in_one_line(SHORT)[0]}, options=VALUE)
    waiting = make_job("mail", VALUE)
    reasons = in_one_line(200)
    later = read_now("default").replace(year=2100)
    more = [make_job("mail", VALUE, wait_reason=text, run_at=later) for text in reasons]
    set_columns(waiting, wait_reason=reasons[0])
    return [failed, done, running, waiting, *more]


def _controls() -> None:
    for number, reason in enumerate(in_one_line(200)):
        make_job(f"paused{number}")
        flow.pause(f"paused{number}", reason=reason, by="root")
        flow.breaker(f"{BREAKER}{number}").open(reason)
    for text in in_one_line(SHORT):
        dead_letters.redrive(task=text, canary=1)
    dead_letters.redrive(queue="mail", canary=1)


def _alarm() -> None:
    """The texts of recipients that could not be told, as delivery writes them."""
    now, told = read_now("default"), []
    for text in in_one_line(180):
        with patch.object(delivery, "tell", side_effect=OSError(text)):
            told.append(delivery._tell_in_time(Recipient("MAIL", ("ops@shop.example",)), text[:20], None))
    pending = {f"MAIL {n}": {"again_at": now.isoformat(), "tries": 3, "error": text} for n, text in enumerate(told)}
    notice = {"incident": 1, "since": now.isoformat(), "ended_at": None, "value": 9, "threshold": 1}
    JobAlarm.objects.create(
        queue="mail", name="oldest_age_seconds", firing=True, value=9, threshold=1, incident=1, since=now,
        looked_at=now, notices=[{**notice, "at": now.isoformat(), "pending": pending}],
    )  # fmt: skip


def _schedule() -> None:
    declare(SCHEDULE, tasks.greet, (ALL, 2), None, {"cron": "0 3 * * *"}, "code")
    versions.announce("default")
    withdraw(SCHEDULE)
    assert S in str(Schedule.objects.get(name=SCHEDULE).definition)
    disable(SCHEDULE, reason=in_one_line(200)[0])


def _group() -> None:
    for number, text in enumerate(in_one_line(120)):
        made = workflow(text)
        made.add(tasks.greet, ALL, number, name=text)
        made.start()


def _outbox() -> None:
    for text in in_one_line(SHORT):
        with transaction.atomic():
            publish(TOPIC, VALUE, text)
    newest = OutboxEvent.objects.order_by("-pk").first()
    OutboxEvent.objects.update(last_error=f"Traceback\n{ALL}OSError: {ALL}")
    OutboxEvent.objects.filter(pk=newest.pk).update(due_at=None, failed_at=UtcNow())


def _others() -> None:
    plain = {"fence": 7, "expires_at": read_now("default").replace(year=2100)}
    for number, text in enumerate(in_one_line(180)):
        with once(text):
            pass
        LockRow.objects.create(lock_key=text, owner=text, owner_token=bytes([number]) * 16, **plain)
        MutexRow.objects.create(lock_key=text, takes=9)
        count_keys(f"kind{number}", text)
        Worker.objects.create(
            name=f"w{number}", host="h", pid=1, supervisor_pid=1, boot_id="b", queues="mail", concurrency=1,
            version="1", stopped_at=UtcNow(), stop_reason=text,
        )  # fmt: skip
    IdempotencyRecord.objects.update(result=VALUE)


def pages(client, jobs) -> Iterator[tuple[str, str]]:
    """(address, page) of every page of the admin, of `jobs`, and of the forms that show a row."""
    queries = {
        "jobqueue_flowrule_queue": {"queue": "paused0"},
        "jobqueue_flowrule_breaker": {"dependency": f"{BREAKER}0"},
        "jobqueue_auditevent_new": {"state": "failed", "queue": "mail"},
        "jobqueue_redrive_new": {"queue": "mail"},
    }
    found = Pages(client, queries)
    lists = [f"{found.paths['jobqueue_job_changelist']}?state={state}" for state in ("failed", "done", "running")]
    for address in [*found.paths.values(), *lists, *map(job_page, jobs)]:
        yield address, client.get(address).content.decode()
    settings = found.paths["jobqueue_settings"]
    yield f"{settings}, checks", client.post(settings).content.decode()


def commands(jobs) -> Iterator[tuple[str, str]]:
    """(words, what was printed) of every sub-command of `jobs` that shows texts, as text and as JSON."""
    single = [
        words for one in jobs for words in (("show", str(one), "--payload"), ("explain", str(one), "--no-stacks"))
    ]
    ready = Job.objects.filter(status=Job.Status.READY).values_list("pk", flat=True).first()
    single.append(("edit", str(ready), "--priority", "3"))
    kind = Job.objects.filter(fingerprint__isnull=False).values_list("fingerprint", flat=True).first()
    some = [("list",), ("list", "--state", "failed"), ("list", "--groups"), ("redrives",), ("note",), ("note", kind),
            ("groups",), ("groups", "show", "1"), ("keys",), ("keys", "--stuck"), ("queues",), ("schedules",),
            ("schedules", "preview", SCHEDULE), ("workers",), ("locks",), ("stats",), ("alarms",), ("unrunnable",),
            ("doctor",), ("explain", "--no-stacks"), ("explain", "--queue", "mail", "--no-stacks"),
            ("explain", "--queue", "paused0", "--no-stacks"), ("retry", "--queue", "mail", "--dry-run")]  # fmt: skip
    for words in [*some, *single]:
        for as_json in ([], ["--json"]):
            out, err = StringIO(), StringIO()
            try:
                call_command("jobs", *words, *as_json, stdout=out, stderr=err)
            except SystemExit:
                pass
            except CommandError as error:
                err.write(str(error))
            if as_json and out.getvalue():
                json.loads(out.getvalue())
            yield " ".join(["jobs", *words, *as_json]), out.getvalue() + err.getvalue()
