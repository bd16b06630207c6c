"""jobs retry: run failed, canceled, delayed or held jobs again, by id or filter, or alone in a process of their own."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import OutputWrapper
from django.db import transaction

from jobqueue.cli.arguments import FOUND, add_database, add_json, count
from jobqueue.cli.audited import audit, audit_jobs
from jobqueue.cli.dead_letters import add_filter, confirm, described, facts, filter_of
from jobqueue.dead_letters import Redriven, redrive
from jobqueue.exceptions import InvalidValue
from jobqueue.log_format import count_of, one_line
from jobqueue.models import Job
from jobqueue.transitions import retry
from jobqueue.validation import check_id
from jobqueue.worker.alone import run_alone


def declare(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("ids", nargs="*", metavar="ID", help="the id of a job")
    add(
        "--alone",
        action="store_true",
        help="run them here, each in a process of its own: for quarantined jobs, which kill their worker",
    )
    add_filter(parser)
    add("--everything", action="store_true", help="all dead letters")
    add("--limit", type=count(10**9), default=None, metavar="N", help="at most N dead letters, the oldest first")
    add("--canary", type=count(1000), default=0, metavar="N", help="retry N jobs first, the others when these pass")
    add("--rate", default=None, metavar="R", help="at most this many jobs per period: 50/s, 100/m")
    add("--dry-run", action="store_true", help="show what would be retried, and change nothing")
    add("--yes", action="store_true", help="do not ask for confirmation; needed without a terminal")
    add_json(parser)
    add_database(parser)


def run(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    options = {name: given[name] for name in ("everything", "limit", "canary", "rate", "dry_run") if given[name]}
    # A dry run of ids alone shows what the same command does without --dry-run.
    if filter_of(given) or options.keys() - ({"dry_run"} if given["ids"] and not given["alone"] else set()):
        return _redrive(out, using, given, options)
    if not given["ids"]:
        raise InvalidValue("jobs retry needs ids of jobs, or a filter such as --fingerprint. Nothing was changed.")
    # All are checked before the first one is changed.
    ids = [check_id(given_id) for given_id in given["ids"]]
    verb = _alone if given["alone"] else _tried if given["dry_run"] else _retried
    found: dict[int, str | None] = {}
    try:
        for job_id in ids:
            found[job_id] = verb(job_id, using)
    finally:
        # What was done before an error is told, too.
        _tell(out, given, found)
        if not given["dry_run"]:
            audit_jobs("retry", (job_id for job_id, state in found.items() if state), using=using)
    return 0 if all(found.values()) else FOUND


def _tell(out: OutputWrapper, given: dict[str, Any], found: dict[int, str | None]) -> None:
    done, not_done = ("would be", "would not be changed") if given["dry_run"] else ("is now", "was not changed")
    if given["json"]:
        out.write(json.dumps({"version": 1, "jobs": [{"id": i, "state": state} for i, state in found.items()]}))
    elif given["verbosity"] > 0:
        for job_id, state in found.items():
            why = f"{not_done}: its state, its dedupe key or its ordering key forbids it"
            out.write(f"job {job_id} {f'{done} {state}' if state else why}")


def _redrive(out: OutputWrapper, using: str, given: dict[str, Any], options: dict[str, Any]) -> int:
    """Record a redrive of the dead letters that match; 5 if there is none, or if the answer is no."""
    if given["alone"]:
        raise InvalidValue("--alone takes ids of jobs, no filter and no canary or rate. Nothing was changed.")
    wanted: dict[str, Any] = filter_of(given) | ({"job_ids": given["ids"]} if given["ids"] else {}) | {"using": using}
    found = redrive(**wanted, **{**options, "dry_run": True})
    if not given["dry_run"] and found.matched:
        if not confirm(f"Retry {_of(found)}?", yes=given["yes"]):
            if given["json"]:
                out.write(json.dumps({"version": 1, "redrive": None}))
            elif given["verbosity"] > 0:
                out.write("nothing was changed")
            return FOUND
        found = redrive(**wanted, **options)
        audit("redrive", {"redrive": str(found.id)}, changed=found.matched, using=using)
    if given["json"]:
        out.write(json.dumps({"version": 1, "redrive": facts(found)}))
    elif given["verbosity"] > 0:
        out.write(one_line(_said(found)))
    return 0 if found.matched else FOUND


def _said(found: Redriven) -> str:
    if not found.matched:
        return "no dead letter matches; nothing was recorded"
    if found.id is None:
        return f"{_of(found)} would be retried; nothing was changed"
    return f"{described(found)}. Workers carry it out; see: manage.py jobs redrives"


def _of(found: Redriven) -> str:
    chosen = count_of(found.wanted, "dead letter")
    return chosen if found.wanted == found.matched else f"{chosen} of the {found.matched} that match"


def _tried(job_id: int, using: str) -> str | None:
    with transaction.atomic(using=using):
        state = _retried(job_id, using)
        transaction.set_rollback(True, using=using)
    return state


def _retried(job_id: int, using: str) -> str | None:
    return Job.Status.READY.name if retry(job_id, using=using) else None


def _alone(job_id: int, using: str) -> str | None:
    status = run_alone(job_id, using=using)
    return None if status is None else status.name
