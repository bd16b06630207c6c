"""jobs list: list jobs, newest first, or dead letters in groups of the same failure."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import OutputWrapper

from jobqueue.cli.arguments import add_database, add_json, count
from jobqueue.cli.dead_letters import add_filter, filter_of, instant, shortened
from jobqueue.dead_letters import fingerprints
from jobqueue.dead_letters.filtering import check_filter, in_order
from jobqueue.exceptions import InvalidValue
from jobqueue.log_format import count_of, one_line
from jobqueue.models import Job

_STATES = [status.name.lower() for status in Job.Status]
_COLUMNS = (
    "id",
    "status",
    "queue",
    "task",
    "attempts",
    "max_attempts",
    "cause",
    "fingerprint",
    "run_at",
    "finished_at",
)


def declare(parser: ArgumentParser) -> None:
    parser.add_argument("--state", choices=_STATES, default=None, help="jobs in this state")
    parser.add_argument(
        "--groups", action="store_true", help="dead letters by what went wrong, the largest group first"
    )
    add_filter(parser)
    parser.add_argument("--limit", type=count(10_000), default=20, metavar="N", help="number of lines (default 20)")
    add_json(parser)
    add_database(parser)


def run(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    if given["groups"]:
        return _groups(out, using, given)
    found = _jobs(using, given)
    if given["json"]:
        out.write(json.dumps({"version": 1, "jobs": found}))
    elif given["verbosity"] > 0:
        for job in found:
            parts = [f"#{job['id']}", job["state"], job["queue"], job["task"] or "(handler)"]
            parts += [f"failed {job['attempts']}/{job['max_attempts']}"] if job["attempts"] else []
            out.write(one_line("  ".join([*parts, *filter(None, (job["cause"], job["fingerprint"]))])))
        if not found:
            out.write("no job matches")
    return 0


def _jobs(using: str, given: dict[str, Any]) -> list[dict[str, Any]]:
    wanted = check_filter(**filter_of(given))
    if given["state"] == "failed":
        rows = in_order(using).reverse().filter(**wanted)
    else:
        rows = Job.objects.using(using).filter(**wanted).order_by("-pk")
        if given["state"] is not None:
            rows = rows.filter(status=Job.Status[given["state"].upper()])
    found = []
    for job in rows.values(*_COLUMNS)[: given["limit"]]:
        state = Job.Status(job.pop("status")).name
        found.append({"id": job.pop("id"), "state": state, **{name: instant(value) for name, value in job.items()}})
    return found


def _groups(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    wanted = filter_of(given)
    kind = wanted.pop("fingerprint", None)
    if given["state"] not in (None, "failed"):
        raise InvalidValue("--groups is about dead letters: leave --state out.")
    groups = [one for one in fingerprints(**wanted, using=using) if kind in (None, one.fingerprint)]
    if given["json"]:
        shown = [{name: instant(value) for name, value in asdict(one).items()} for one in groups[: given["limit"]]]
        out.write(json.dumps({"version": 1, "groups": shown}))
    elif given["verbosity"] > 0:
        for one in groups[: given["limit"]]:
            parts = [str(one.count), one.cause or "-", one.task or "(handler)", one.error_class or "-"]
            parts += [one.fingerprint or "-", f"last {instant(one.last_seen)}", f"such as #{one.sample_job_id}"]
            out.write(one_line("  ".join(parts)))
            if one.note:
                out.write(f"   note: {shortened(one.note)}")
        out.write(f"{count_of(sum(one.count for one in groups), 'dead letter')} in {count_of(len(groups), 'group')}")
    return 0
