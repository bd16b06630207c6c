"""Sub-commands about jobs and groups of jobs: list and show them, cancel, discard and release jobs, resume groups."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from django.db.models import Q
from django.db.models.functions import Right

from jobqueue import groups, transitions
from jobqueue.base.durations import format_seconds
from jobqueue.base.validation import check_id, readable_key
from jobqueue.cli.arguments import FOUND, NO_SUCH_ID, count, duration_or_zero, read_words
from jobqueue.cli.audited import audit, change_each
from jobqueue.cli.dead_letters import add_filter, filter_of, shortened
from jobqueue.cli.output import Result, Results, Subcommand, confirm, instant, listed
from jobqueue.db import vendor
from jobqueue.db.expressions import Unestimated
from jobqueue.db.prepared import ids_that_meet, totals
from jobqueue.dead_letters.listing import groups_of, newest_rows
from jobqueue.dead_letters.noting import notes_on
from jobqueue.exceptions import InvalidValue
from jobqueue.explain.explanation import reason_in_words
from jobqueue.groups import Group
from jobqueue.log_format import count_of, one_line
from jobqueue.masking import mask_tail, mask_text, mask_value
from jobqueue.models import Job, JobAttempt
from jobqueue.models.states import STATES, condition_of
from jobqueue.runs.arguments import LookedThrough, with_argument
from jobqueue.runs.job_filter import check_columns, dead_rows, in_order
from jobqueue.transitions.killing import jobs_beside

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
_KEYS = ("dedupe_key", "released_key", "ordering_key", "concurrency_key")
_LARGE = ("payload", "result")
_ERROR_CHARS = 4000


def _declare_list(parser: ArgumentParser) -> None:
    parser.add_argument("--state", choices=[*_STATES], default=None, help="jobs in this state")
    parser.add_argument(
        "--groups", action="store_true", help="dead letters by what went wrong, the largest group first"
    )
    add_filter(parser)
    parser.add_argument("--arg", default=None, metavar="VALUE", help="jobs with this value among their arguments")
    parser.add_argument("--before", default=None, metavar="ID", help="with --arg: only older jobs")
    parser.add_argument("--limit", type=count(10_000), default=20, metavar="N", help="number of lines (default 20)")


def _list(using: str, given: dict[str, Any]) -> Result:
    if given["before"] is not None and given["arg"] is None:
        raise InvalidValue("--before goes with --arg.")
    if given["groups"]:
        if given["arg"] is not None:
            raise InvalidValue("--groups has no arguments: leave --arg out.")
        return _dead_letter_groups(using, given)
    looked: LookedThrough | None = None
    if given["arg"] is None:
        ids, complete = _ids(using, given)
    else:
        looked = _with_argument(using, given)
        ids, complete = looked.ids, looked.last_id is None
    found, last_id = _jobs(using, ids), looked and looked.last_id
    lines = _listed(found, complete or looked is not None)
    said = [] if looked is None else [_looked_through(looked)]
    return Result({"jobs": found, "complete": complete, "before": last_id}, [*lines, *said])


def _with_argument(using: str, given: dict[str, Any]) -> LookedThrough:
    conditions = Q(**check_columns(filter_of(given)))
    before = None if given["before"] is None else check_id(given["before"])
    if given["state"] is not None:
        conditions &= condition_of(_STATES[given["state"]])
    return with_argument(given["arg"], conditions, most=given["limit"], before=before, using=using)


def _looked_through(looked: LookedThrough) -> str:
    said = f"looked through {count_of(looked.number, 'job')}"
    if looked.last_id is None:
        return f"{said}; no older one is left"
    return f"{said}, back to {instant(looked.since)}; to go on, add --before {looked.last_id}"


def _listed(found: list[dict[str, Any]], complete: bool) -> Iterator[str]:
    for job in found:
        parts = [f"#{job['id']}", job["state"], job["queue"], job["task"] or "(handler)"]
        parts += [f"failed {job['attempts']}/{job['max_attempts']}"] if job["attempts"] else []
        yield "  ".join([*parts, *filter(None, (job["cause"], job["fingerprint"]))])
    if not found:
        yield "no job matches"
    if not complete:
        yield "only the newest jobs were searched; --state failed searches all dead letters"


def _ids(using: str, given: dict[str, Any]) -> tuple[list[int], bool]:
    """The ids of the newest jobs that match, and whether all jobs were looked at that could be among them."""
    wanted, limit = check_columns(filter_of(given)), given["limit"]
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
        found.append({"id": job.pop("id"), "state": state, **job})
    return found


def _dead_letter_groups(using: str, given: dict[str, Any]) -> Result:
    wanted = check_columns(filter_of(given))
    if given["state"] not in (None, "failed"):
        raise InvalidValue("--groups is about dead letters: leave --state out.")
    rows, are_older = newest_rows(using, wanted, GROUPED_MAX)
    kinds = groups_of(rows, using)
    shown = kinds[: given["limit"]]

    def lines() -> Iterator[str]:
        for one in shown:
            parts = [str(one.count), one.cause or "-", one.task or "(handler)", one.error_class or "-"]
            parts += [one.fingerprint or "-", f"last {instant(one.last_seen)}", f"such as #{one.sample_job_id}"]
            yield "  ".join(parts)
            if one.note:
                yield f"   note: {shortened(one.note)}"
        said = f"{count_of(sum(one.count for one in kinds), 'dead letter')} in {count_of(len(kinds), 'group')}"
        yield f"{said}, among the newest {GROUPED_MAX}" if are_older else said

    complete = len(kinds) == len(shown) and not are_older
    return Result({"groups": list(map(asdict, shown)), "complete": complete}, lines())


def _declare_show(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of a job")
    parser.add_argument("--payload", action="store_true", help="print its payload and result, too; secrets are masked")
    parser.add_argument(
        "--attempts", type=count(1000), default=5, metavar="N", help="the newest N attempts (default 5)"
    )


def _show(using: str, given: dict[str, Any]) -> Result:
    job_id = check_id(given["id"])
    job = Job.objects.using(using).filter(pk=job_id).defer(*(() if given["payload"] else _LARGE)).first()
    if job is None:
        document: dict[str, Any] = {"job": None, "note": None, "attempts": []}
        return Result(document, [f"job {job_id} does not exist"], NO_SUCH_ID)
    found = _facts(job, payload=given["payload"])
    attempts = _attempts(job_id, using, given["attempts"])
    note = notes_on([job.fingerprint], using=using).get(job.fingerprint)
    text = None if note is None else note.text

    def lines() -> Iterator[str]:
        for name, value in found.items():
            if value is not None:
                yield from _column(name, value, job.gate)
        if text is not None:
            yield f"note on such failures: {shortened(text)}"
        for attempt in attempts:
            parts = [attempt["cause"], attempt["error_class"], instant(attempt["ended_at"])]
            yield "  ".join([f"attempt {attempt['attempt']}", *filter(None, parts)])

    return Result({"job": found, "note": text, "attempts": attempts}, lines())


def _facts(job: Job, *, payload: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"id": job.pk, "state": Job.Status(job.status).name}
    for field in Job._meta.concrete_fields:
        name = field.attname
        if name in ("id", "status", "lock_token") or (name in _LARGE and not payload):
            continue
        value = _masked(name, getattr(job, name))
        found[name] = readable_key(bytes(value)) if name in _KEYS and value is not None else value
    return found


def _masked(name: str, value: Any) -> Any:
    """A value without its secrets, of which the whole may know more than a line of it. SQL shows what is stored."""
    if name in (*_LARGE, "options", "progress"):
        return mask_value(value)
    return mask_text(value) if name in ("last_error", "wait_reason") and value else value


def _attempts(job_id: int, using: str, limit: int) -> list[dict[str, Any]]:
    rows = JobAttempt.objects.using(using).filter(job_id=job_id).order_by("-id")
    columns = ("attempt", "cause", "fingerprint", "error_class", "worker", "started_at", "ended_at")
    found = rows.annotate(tail=Right("error", _ERROR_CHARS)).values(*columns, "tail")[:limit]
    return [row | {"tail": mask_tail(row["tail"], _ERROR_CHARS) if row["tail"] else row["tail"]} for row in found]


def _column(name: str, value: object, gate: int) -> Iterator[str]:
    if name == "last_error":
        yield f"{name}:"
        yield from (f"  {line}" for line in str(value).rstrip().splitlines()[-20:])
    elif name == "wait_reason" and (words := reason_in_words(str(value), gate)) != value:
        yield f"{name}: {value} ({words})"
    else:
        text = json.dumps(value) if name in (*_LARGE, "options", "progress") else str(instant(value))
        yield f"{name}: {text}"


#: verb -> the function, and what is said of a job that it has changed, or has not
CHANGES: dict[str, tuple[Callable[..., bool], str, str]] = {
    "cancel": (
        transitions.cancel,
        "is canceled, or asked to stop if it runs",
        "was not changed: it has ended, or does not exist",
    ),
    "discard": (
        transitions.discard,
        "is discarded and will not run",
        "was not changed: it is neither waiting nor failed, or does not exist",
    ),
    "release": (
        transitions.release_held,
        "was taken from its worker and is READY",
        "was not changed: it does not run, or has just ended",
    ),
}


def _declare_change(parser: ArgumentParser) -> None:
    parser.add_argument("ids", nargs="+", metavar="ID", help="the id of a job")


def _declare_cancel(parser: ArgumentParser) -> None:
    _declare_change(parser)
    parser.add_argument(
        "--kill-after",
        type=duration_or_zero,
        default=None,
        metavar="TIME",
        help="kill the process of a running job that has not stopped by then; the jobs beside it run again",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation; needed without a terminal")


def _cancel(using: str, given: dict[str, Any]) -> Results:
    after = given["kill_after"]
    if after is None:
        return _change(using, given)
    beside = jobs_beside(given["ids"], using=using)
    names = ", ".join(f"#{one.id} {one.task or f'(handler of {one.queue})'}" for one in beside) or "no job"
    told = one_line(f"In the same processes, killed too and run again: {names}.")
    ids = ", ".join(f"#{job_id}" for job_id in given["ids"])
    question = mask_text(f"{told} Kill the processes of {ids} after {format_seconds(after)}?")
    if not confirm(question, yes=given["yes"]):
        return Result({"jobs": []}, ["nothing was changed"], FOUND)
    return _change(using, given, kill_after_seconds=after)


def _change(using: str, given: dict[str, Any], **options: float) -> Results:
    verb = given["subcommand"]
    change, done, refused = CHANGES[verb]

    def told(found: Mapping[int, bool]) -> Result:
        return Result(
            {"jobs": [{"id": job_id, "changed": changed} for job_id, changed in found.items()]},
            [f"job {job_id} {done if changed else refused}" for job_id, changed in found.items()],
            0 if all(found.values()) else FOUND,
        )

    reason = ", ".join(f"{name}={value:g}" for name, value in options.items())
    change = partial(change, using=using, **options)
    return change_each(verb, given["ids"], change, told, reason=reason, using=using)


LIST = Subcommand("List jobs, newest first, or dead letters in groups of the same failure.", _declare_list, _list)
SHOW = Subcommand("Print a job with its failed attempts and the note on its failure.", _declare_show, _show)
CANCEL = Subcommand("End waiting jobs now, and ask running jobs to stop, or make them.", _declare_cancel, _cancel)
DISCARD = Subcommand(
    "End failed and waiting jobs as canceled, so that they are dead letters no more.", _declare_change, _change
)
RELEASE = Subcommand("Take running jobs from their workers, without using an attempt.", _declare_change, _change)


def _declare_groups(parser: ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="VERB ID",
        help="show, seal or cancel the group ID, or resume the workflow ID; without a verb, or with list, list groups",
    )
    parser.add_argument("--dry-run", action="store_true", help="with resume: only say which nodes would run again")
    parser.add_argument("--limit", type=count(10_000), default=20, metavar="N", help="number of groups (default 20)")
    parser.add_argument("--live", action="store_true", help="only groups that have not ended")


def _groups_of_jobs(using: str, given: dict[str, Any]) -> Result:
    verb, *ids = read_words(
        given, {"list": (), "show ID": (), "seal ID": (), "cancel ID": (), "resume ID": ("dry_run",)}
    )
    if verb == "list":
        found = groups.known(limit=given["limit"], ended=not given["live"], using=using)
        lines = listed(map(_group_line, found), found, given, "no group matches")
        return Result({"groups": list(map(_group_facts, found))}, lines)
    if verb == "resume":
        return _resume_workflow(ids[0], using, dry_run=given["dry_run"])
    if verb == "show":
        group = groups.get(ids[0], using=using)
        data = mask_value(group.data)
        more = [] if data is None else [f"data: {json.dumps(data, default=str)}"]
        return Result({"group": _group_facts(group) | {"data": data}}, [_group_line(group), *more])
    changed = (groups.seal if verb == "seal" else groups.cancel)(ids[0], using=using)
    audit(verb, {"group": ids[0]}, changed=int(changed), using=using)
    group = groups.get(ids[0], using=using)
    said = _group_line(group) if changed else f"{_group_line(group)}; nothing was changed"
    return Result({"changed": changed, "group": _group_facts(group)}, [said], 0 if changed else FOUND)


def _resume_workflow(group_id: str, using: str, *, dry_run: bool) -> Result:
    found = groups.resume(group_id, dry_run=dry_run, using=using)
    if not found.dry_run:
        audit("resume", {"group": group_id}, changed=len(found.runs) + len(found.waits), using=using)
    would = "would run" if found.dry_run else "run"
    lines = [f"{name}: {would} again now" for name in found.runs]
    lines += [f"{name}: {would} again after its parents" for name in found.waits]
    nothing = "no node has failed or was canceled; nothing was changed"
    return Result(asdict(found), lines or [nothing], 0 if lines else FOUND)


def _group_line(one: Group) -> str:
    state = "canceled" if one.canceled_at is not None and one.state != "ended" else one.state
    counts = f"{one.done} done, {one.failed} failed, {one.canceled} canceled of {one.total}"
    return f"#{one.id}  {one.name}  {state}  {counts}"


def _group_facts(one: Group) -> dict[str, Any]:
    facts = asdict(one) | {"outstanding": one.outstanding}
    return {name: value for name, value in facts.items() if name not in ("data", "using")}


GROUPS = Subcommand(
    "List groups and workflows, newest first, or show, seal, cancel or resume one.", _declare_groups, _groups_of_jobs
)
