"""jobs show: print a job with its failed attempts and the note on its failure."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import OutputWrapper
from django.db.models.functions import Right

from jobqueue.cli.arguments import NO_SUCH_ID, add_database, add_json, count
from jobqueue.cli.dead_letters import instant, shortened
from jobqueue.dead_letters.noting import notes_on
from jobqueue.explain.words import reason_in_words
from jobqueue.log_format import one_line
from jobqueue.masking import mask_tail, mask_text, mask_value
from jobqueue.models import Job, JobAttempt
from jobqueue.validation import check_id, readable_key

_KEYS = ("dedupe_key", "released_key", "ordering_key", "concurrency_key")
_LARGE = ("payload", "result")
_ERROR_CHARS = 4000


def declare(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of a job")
    parser.add_argument("--payload", action="store_true", help="print its payload and result, too; secrets are masked")
    parser.add_argument(
        "--attempts", type=count(1000), default=5, metavar="N", help="the newest N attempts (default 5)"
    )
    add_json(parser)
    add_database(parser)


def run(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    job_id = check_id(given["id"])
    job = Job.objects.using(using).filter(pk=job_id).defer(*(() if given["payload"] else _LARGE)).first()
    found = {} if job is None else _facts(job, payload=given["payload"])
    attempts = _attempts(job_id, using, given["attempts"]) if found else []
    note = notes_on([found.get("fingerprint")], using=using).get(found.get("fingerprint", "")) if found else None
    if given["json"]:
        text = None if note is None else note.text
        out.write(json.dumps({"version": 1, "job": found or None, "note": text, "attempts": attempts}))
    elif given["verbosity"] > 0:
        for name, value in found.items():
            if value is not None:
                _write(out, name, value, found["gate"])
        if note is not None:
            out.write(f"note on such failures: {shortened(note.text)}")
        for attempt in attempts:
            head = [f"attempt {attempt['attempt']}", attempt["cause"], attempt["error_class"], attempt["ended_at"]]
            out.write(one_line("  ".join(filter(None, head))))
        if not found:
            out.write(f"job {job_id} does not exist")
    return 0 if found else NO_SUCH_ID


def _facts(job: Job, *, payload: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"id": job.pk, "state": Job.Status(job.status).name}
    for field in Job._meta.concrete_fields:
        name = field.attname
        if name in ("id", "status", "lock_token") or (name in _LARGE and not payload):
            continue
        value = _masked(name, getattr(job, name))
        found[name] = readable_key(bytes(value)) if name in _KEYS and value is not None else instant(value)
    return found


def _masked(name: str, value: Any) -> Any:
    """A value without its secrets. There is no way around: SQL shows what is stored."""
    if name in (*_LARGE, "options", "progress"):
        return mask_value(value)
    return mask_text(value) if name in ("last_error", "wait_reason") and value else value


def _attempts(job_id: int, using: str, limit: int) -> list[dict[str, Any]]:
    rows = JobAttempt.objects.using(using).filter(job_id=job_id).order_by("-id")
    columns = ("attempt", "cause", "fingerprint", "error_class", "worker", "started_at", "ended_at")
    found = rows.annotate(tail=Right("error", _ERROR_CHARS)).values(*columns, "tail")[:limit]
    return [
        {
            name: instant(mask_tail(value, _ERROR_CHARS) if name == "tail" and value else value)
            for name, value in row.items()
        }
        for row in found
    ]


def _write(out: OutputWrapper, name: str, value: object, gate: int) -> None:
    if name == "last_error":
        lines = str(value).rstrip().splitlines()[-20:]
        out.write("\n".join([f"{name}:", *(f"  {one_line(line)}" for line in lines)]))
    elif name == "wait_reason" and (words := reason_in_words(str(value), gate)) != value:
        out.write(one_line(f"{name}: {value} ({words})"))
    else:
        text = json.dumps(value) if name in (*_LARGE, "options", "progress") else str(value)
        out.write(one_line(f"{name}: {text}"))
