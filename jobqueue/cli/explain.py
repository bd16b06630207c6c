"""Sub-commands that say what is wrong: explain, unrunnable and doctor; and the lock for which a command has waited."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from django.core.management.base import OutputWrapper
from django.db import Error
from django.utils import translation

from jobqueue.base.payload import JSON
from jobqueue.base.validation import check_id
from jobqueue.cli.arguments import FOUND, NO_DATABASE, NO_SUCH_ID
from jobqueue.cli.output import Result, Subcommand, aligned
from jobqueue.db import fault_vendor
from jobqueue.db.time_limit import time_limit
from jobqueue.doctor import Finding, Level
from jobqueue.doctor.examination import Checked, run_checks
from jobqueue.doctor.tables import grants
from jobqueue.exceptions import DatabaseBusy, InvalidValue, StatementTimeout
from jobqueue.explain import Explanation, explain_backlog, explain_job, explain_queue
from jobqueue.explain.explanation import CODES
from jobqueue.explain.row_locks import locked_tables, waits_in_words
from jobqueue.explain.workers import ask_workers
from jobqueue.log_format import one_line
from jobqueue.masking import mask_text
from jobqueue.models import Job
from jobqueue.tasks import registry
from jobqueue.tasks.unrunnable import Unrunnable, find_unrunnable

#: how long reading may take
READ_SECONDS = 5.0
_PAGE = "docs/howto/troubleshooting.md"
#: jobs that `unrunnable` looks at unless all are
SOME = 50_000


def _declare_explain(parser: ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", default=None, metavar="ID", help="the id of a job; without it: all due jobs")
    parser.add_argument("--queue", default=None, metavar="NAME", help="the jobs of this queue")
    parser.add_argument("--no-stacks", action="store_true", help="do not ask busy workers where their threads are")
    parser.add_argument(
        "--all-causes", action="store_true", help="look at all causes, also if the database answers slowly"
    )


def _prepare_explain(given: dict[str, Any]) -> None:
    if given["id"] is not None and given["queue"] is not None:
        raise InvalidValue("jobs explain takes the ID of a job or --queue, not both. Nothing was explained.")
    if given["id"] is not None:
        check_id(given["id"])
    # So that the limits of tasks are known, and no task is said to be unknown here.
    list(registry.discover())


def _explain(using: str, given: dict[str, Any]) -> Result:
    job_id = None if given["id"] is None else check_id(given["id"])
    found = _reasons(job_id, given, using)
    # Not within the limit of time, which may be a transaction.
    if not given["no_stacks"] and ask_workers(found, job_id=job_id, queue=given["queue"], using=using):
        found = _reasons(job_id, given, using)
    said = _lines(found) if found else [f"job {job_id} does not exist"]
    document = {"job_id": job_id, "queue": given["queue"], "reasons": list(map(asdict, found))}
    return Result(document, [*said, "", f"More: {_PAGE}#{_part(found, job_id)}"], 0 if found else NO_SUCH_ID)


def _reasons(job_id: int | None, given: dict[str, Any], using: str) -> list[Explanation]:
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
    runs = job_id is not None and found and CODES[found[0].code].runs
    return "a-job-takes-too-long" if runs else "my-job-does-not-run"


def _lines(found: list[Explanation]) -> Iterator[str]:
    """The likeliest first, with an empty line between two."""
    for place, one in enumerate(found):
        if place:
            yield ""
        yield f"{one.code}: {one.text}"
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


def _declare_unrunnable(parser: ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="look at every waiting job, however many there are")
    parser.add_argument("--fail-if-any", action="store_true", help=f"exit {FOUND} if there are any; looks at all")


def _unrunnable(using: str, given: dict[str, Any]) -> Result:
    list(registry.discover())
    found, complete = find_unrunnable(using=using, most=None if given["all"] or given["fail_if_any"] else SOME)
    jobs = sum(kind.jobs for kind in found)
    if complete:
        said = f"{jobs} waiting jobs cannot be run by this code"
    else:
        said = f"{jobs} of the jobs that are claimed first cannot be run by this code; --all looks at all"
    document = {"unrunnable": list(map(asdict, found)), "complete": complete}
    return Result(document, [*map(_kind, found), said], FOUND if found and given["fail_if_any"] else 0)


def _kind(kind: Unrunnable) -> str:
    version = f" version {kind.payload_version}" if kind.payload_version > 1 else ""
    name = (kind.task or "(handler)") + version
    return f"{kind.jobs}  {kind.queue}  {name}  from #{kind.first_id}  {kind.why}"


def tell_waits(using: str, err: OutputWrapper, error: Exception) -> None:
    """Write the current lock waits, with their holders, to `err` if `error` may have come from one."""
    waited = isinstance(error, DatabaseBusy | StatementTimeout)
    if not waited and not (isinstance(error, Error) and fault_vendor(using).waited_too_long(error)):
        return
    with translation.override(None):
        found = waits_in_words(using)
    for one in found:
        err.write(mask_text(one_line(f"{one.code}: {one.text} {one.next_step}")))


EXPLAIN = Subcommand(
    "Say why a job does not run, a queue does not move, or due jobs wait at all.",
    _declare_explain,
    _explain,
    prepare=_prepare_explain,
    watched="what holds jobs of {} up",
)
UNRUNNABLE = Subcommand(
    "List the waiting jobs that the code of this process cannot run.", _declare_unrunnable, _unrunnable
)


#: the exit status if there is an error or a warning
FOUND_WRONG = 1


def _declare_doctor(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--grants",
        metavar="ACCOUNT",
        help="print the GRANT statements that this account of workers needs; check nothing",
    )


def _doctor(using: str, given: dict[str, Any]) -> Result:
    if given["grants"] is not None:
        statements = grants(given["grants"], using)
        nobody = ["-- This database has no accounts: whoever may write the file may run workers."]
        return Result({"database": using, "grants": statements}, statements or nobody, is_script=True)
    examination = run_checks(using)
    checked, findings = examination.checked, examination.findings
    status = FOUND_WRONG if any(finding.is_bad for finding in findings) else 0
    if any(finding.id == "database_unreachable" for finding in findings):
        status = NO_DATABASE
    lines = _doctor_lines(checked, findings, every=given["verbosity"] > 1)
    return Result(_document(using, checked, findings), lines, status)


def _document(using: str, checked: Sequence[Checked], findings: Sequence[Finding]) -> dict[str, Any]:
    checks = [{"name": one.check.name, "title": one.check.title, "state": _state(one)} for one in checked]
    return {"database": using, "findings": [asdict(finding) for finding in findings], "checks": checks}


def _state(one: Checked) -> str:
    if one.findings is None:
        return "left out"
    return "findings" if one.findings else "passed"


def _doctor_lines(checked: Sequence[Checked], findings: Sequence[Finding], *, every: bool) -> Iterator[str]:
    rows = [row for finding in findings for row in _rows(finding)]
    if every:
        rows += [(_state(one), one.check.name, one.check.title) for one in checked if not one.findings]
    yield from aligned(rows) if rows else []
    left_out = sum(one.findings is None for one in checked)
    more = f"; {left_out} were left out" if left_out else ""
    yield f"{len(checked) - left_out} checks: {_counts(findings)}{more}"
    yield "Symptoms, and what to do: docs/howto/troubleshooting.md"


def _rows(finding: Finding) -> Iterator[tuple[str, str, str]]:
    yield finding.level, finding.id, finding.text
    yield "", "", f"  To do: {finding.fix}"


def _counts(findings: Sequence[Finding]) -> str:
    number = Counter(finding.level for finding in findings)
    bad = [f"{number[level]} {level}{'' if number[level] == 1 else 's'}" for level in (Level.ERROR, Level.WARNING)]
    return f"{', '.join(bad)}, {number[Level.INFO]} for information"


DOCTOR = Subcommand("Check the whole set-up, and print what to do about each finding.", _declare_doctor, _doctor)
