"""jobs list: list jobs, newest first, or dead letters in groups of the same failure."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import OutputWrapper
from django.db.models import Q

from jobqueue.cli.arguments import add_database, add_json, count
from jobqueue.cli.dead_letters import add_filter, filter_of, instant, shortened
from jobqueue.db import vendor
from jobqueue.db.expressions import Unestimated
from jobqueue.db.parts import ids_that_meet, totals
from jobqueue.dead_letters.filtering import check_filter, dead_rows, in_order
from jobqueue.dead_letters.listing import groups_of, newest_rows
from jobqueue.exceptions import InvalidValue
from jobqueue.log_format import count_of, one_line
from jobqueue.models import Job
from jobqueue.models.states import STATES, condition_of

#: jobs that are looked at in one statement where no index has those that match, and for how long
SEARCHED, LOOK_SECONDS = 20_000, 0.7
#: dead letters that are put into groups
GROUPED_MAX = 100_000
#: the words of models.states, and another one for "running"
_STATES = {state: state for state in STATES} | {"processing": "running"}
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
    parser.add_argument("--state", choices=[*_STATES], default=None, help="jobs in this state")
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
    ids, complete = _ids(using, given)
    found = _jobs(using, ids)
    if given["json"]:
        out.write(json.dumps({"version": 1, "jobs": found, "complete": complete}))
    elif given["verbosity"] > 0:
        for job in found:
            parts = [f"#{job['id']}", job["state"], job["queue"], job["task"] or "(handler)"]
            parts += [f"failed {job['attempts']}/{job['max_attempts']}"] if job["attempts"] else []
            out.write(one_line("  ".join([*parts, *filter(None, (job["cause"], job["fingerprint"]))])))
        if not found:
            out.write("no job matches")
        if not complete:
            out.write("only the newest jobs were looked at; --state failed looks at all dead letters")
    return 0


def _ids(using: str, given: dict[str, Any]) -> tuple[list[int], bool]:
    """The ids of the newest jobs that match, and whether all jobs were looked at that could be among them."""
    wanted, limit = check_filter(**filter_of(given)), given["limit"]
    if given["state"] == "failed":
        rows = dead_rows(using, wanted).order_by("-pk") if "queue" in wanted else in_order(using).reverse()
        return list(rows.filter(**wanted).values_list("pk", flat=True)[:limit]), True
    conditions = Q(**wanted)
    if given["state"] is not None:
        state = _STATES[given["state"]]
        conditions &= condition_of(state)
        few = _few(using, STATES[state].status, conditions, limit)
        if few is not None:
            return few, True
    jobs = vendor(using).force_index(Job.objects.using(using).only("pk"), "PRIMARY").order_by("-pk")
    if not conditions:
        return list(jobs.values_list("pk", flat=True)[:limit]), True
    found: list[int] = []
    ahead, until = jobs, time.monotonic() + LOOK_SECONDS
    while True:
        part = ahead[:SEARCHED]
        seen = totals(part, conditions)
        if seen.meeting:
            found += ids_that_meet(part, conditions, order="DESC", most=limit - len(found))
        if len(found) == limit or seen.number < SEARCHED:
            return found, True
        if time.monotonic() > until:
            return found, False
        ahead = jobs.filter(pk__lt=seen.lowest)


def _few(using: str, status: int, conditions: Q, limit: int) -> list[int] | None:
    """The newest of all jobs that meet the conditions, which ask for a status; None if too many wait or run."""
    if status not in (Job.Status.READY, Job.Status.PROCESSING):
        return None
    rows = Job.objects.using(using).filter(status=Unestimated(int(status))).only("pk").order_by("lock_until")
    part = vendor(using).walk_by(rows, "ix_lease")[:SEARCHED]
    seen = totals(part, conditions)
    if seen.number == SEARCHED:
        return None
    return ids_that_meet(part, conditions, order="DESC", most=limit) if seen.meeting else []


def _jobs(using: str, ids: list[int]) -> list[dict[str, Any]]:
    rows = {row["id"]: row for row in Job.objects.using(using).filter(pk__in=ids).values(*_COLUMNS)}
    found = []
    for job in (rows[job_id] for job_id in ids if job_id in rows):
        state = Job.Status(job.pop("status")).name
        found.append({"id": job.pop("id"), "state": state, **{name: instant(value) for name, value in job.items()}})
    return found


def _groups(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    wanted = check_filter(**filter_of(given))
    if given["state"] not in (None, "failed"):
        raise InvalidValue("--groups is about dead letters: leave --state out.")
    rows, are_older = newest_rows(using, wanted, GROUPED_MAX)
    groups = groups_of(rows, using)
    if given["json"]:
        shown = [{name: instant(value) for name, value in asdict(one).items()} for one in groups[: given["limit"]]]
        out.write(json.dumps({"version": 1, "groups": shown, "complete": len(groups) == len(shown) and not are_older}))
    elif given["verbosity"] > 0:
        for one in groups[: given["limit"]]:
            parts = [str(one.count), one.cause or "-", one.task or "(handler)", one.error_class or "-"]
            parts += [one.fingerprint or "-", f"last {instant(one.last_seen)}", f"such as #{one.sample_job_id}"]
            out.write(one_line("  ".join(parts)))
            if one.note:
                out.write(f"   note: {shortened(one.note)}")
        said = f"{count_of(sum(one.count for one in groups), 'dead letter')} in {count_of(len(groups), 'group')}"
        out.write(f"{said}, among the newest {GROUPED_MAX}" if are_older else said)
    return 0
