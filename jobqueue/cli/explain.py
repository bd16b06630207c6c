"""jobs explain: say why a job does not run, a queue does not move, or due jobs wait at all."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.core.management.base import OutputWrapper
from django.utils import translation

from jobqueue.cli.arguments import NO_SUCH_ID, add_database, add_json
from jobqueue.cli.tables import aligned
from jobqueue.cli.watch import add_watch, repeat
from jobqueue.db.time_limit import time_limit
from jobqueue.exceptions import InvalidValue
from jobqueue.explain import Explanation, explain_backlog, explain_job, explain_queue
from jobqueue.explain.asking import ask_workers
from jobqueue.explain.row_locks import locked_tables
from jobqueue.log_format import one_line
from jobqueue.models import Job
from jobqueue.payload import JSON
from jobqueue.tasks import registry
from jobqueue.validation import check_id

#: how long reading may take
READ_SECONDS = 5.0
_PAGE = "docs/howto/troubleshooting.md"
#: first codes of a job that runs
_RUNS = ("running", "outside_service", "hanging")


def declare(parser: ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", default=None, metavar="ID", help="the id of a job; without it: all due jobs")
    parser.add_argument("--queue", default=None, metavar="NAME", help="the jobs of this queue")
    parser.add_argument("--no-stacks", action="store_true", help="do not ask busy workers where their threads are")
    parser.add_argument(
        "--all-causes", action="store_true", help="look at all causes, also if the database answers slowly"
    )
    add_watch(parser)
    add_json(parser)
    add_database(parser)


def run(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    if given["id"] is not None and given["queue"] is not None:
        raise InvalidValue("jobs explain takes the ID of a job or --queue, not both. Nothing was explained.")
    job_id = None if given["id"] is None else check_id(given["id"])
    # So that the limits of tasks are known, and no task is said to be unknown here.
    list(registry.discover())

    def show(out: OutputWrapper) -> int:
        found = _explain(job_id, given, using)
        # Not within the limit of time, which may be a transaction.
        if not given["no_stacks"] and ask_workers(found, job_id=job_id, queue=given["queue"], using=using):
            found = _explain(job_id, given, using)
        if given["json"]:
            reasons = [asdict(one) for one in found]
            out.write(json.dumps({"version": 1, "job_id": job_id, "queue": given["queue"], "reasons": reasons}))
        elif given["verbosity"] > 0:
            for line in _lines(found) if found else [f"job {job_id} does not exist"]:
                out.write(line)
            out.write(f"\nMore: {_PAGE}#{_part(found, job_id)}")
        return 0 if found else NO_SUCH_ID

    return repeat(show, out, using, given, words=f"what holds jobs of {using} up")


def _explain(job_id: int | None, given: dict[str, Any], using: str) -> list[Explanation]:
    """[] for an id that no job has. In English, as everything on the command line."""
    queue, every = given["queue"], given["all_causes"]
    with translation.override(None), time_limit(READ_SECONDS, using=using):
        if blocked := locked_tables(using):
            # Whatever reads a job would wait, too.
            return blocked
        if job_id is None and queue is None:
            return explain_backlog(using=using, all_causes=every)
        if job_id is None:
            return explain_queue(queue, using=using, all_causes=every)
        try:
            return explain_job(job_id, using=using, all_causes=every)
        except InvalidValue:
            if Job.objects.using(using).filter(pk=job_id).exists():
                raise
            return []


def _part(found: list[Explanation], job_id: int | None) -> str:
    """The part of the page that is about it."""
    runs = job_id is not None and found and found[0].code in _RUNS
    return "a-job-takes-too-long" if runs else "my-job-does-not-run"


def _lines(found: list[Explanation]) -> Iterator[str]:
    """The likeliest first, with an empty line between two."""
    for place, one in enumerate(found):
        if place:
            yield ""
        yield one_line(f"{one.code}: {one.text}")
        rows = [[f"  {name}", _shown(value)] for name, value in one.evidence.items() if value not in (None, "", [])]
        yield from aligned([*rows, ["  next step", one.next_step]])


def _shown(value: JSON) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return value if isinstance(value, str) else json.dumps(value)
