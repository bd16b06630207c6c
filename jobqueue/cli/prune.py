"""The sub-command prune: delete ended jobs that are old or many enough, and old rows of the other tables."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from jobqueue.base.durations import format_seconds, parse_seconds
from jobqueue.base.validation import check_queue
from jobqueue.cli.arguments import FOUND, NO_SUCH_ID, count, duration, duration_or_zero
from jobqueue.cli.audited import audit
from jobqueue.cli.output import Result, Subcommand, aligned, complain, confirm
from jobqueue.conf import load
from jobqueue.conf.queues import STATES, YEARS_MAX, Kept
from jobqueue.exceptions import InvalidValue
from jobqueue.log_format import count_of
from jobqueue.maintenance.cleaner import CLEANERS
from jobqueue.retention.deletion import Chosen, Deletions
from jobqueue.retention.history import Keep, archive, json_lines
from jobqueue.retention.windows import Walk, results_past_ttl

#: for how long old rows of one other table are deleted; the rest is left for workers
OTHER_SECONDS = 30.0


@dataclass(slots=True)
class _Counts:
    """Jobs found or deleted, by queue and state."""

    jobs: Counter[tuple[str, str]] = field(default_factory=Counter)
    rows: dict[str, int] = field(default_factory=dict)  # of other tables
    ids: list[int] = field(default_factory=list)
    complete: bool = True
    lists: bool = False  # whether the ids are kept

    @property
    def total(self) -> int:
        return self.jobs.total()

    def add(self, found: Chosen, ids: Collection[int]) -> None:
        """Add these jobs to the counts."""
        if ids:
            self.jobs[found.queue, found.state] += len(ids)
            self.ids += ids if self.lists else ()


def _states(text: str) -> Mapping[str, Kept]:
    """Parse text such as done=7d,failed=90d."""
    found: dict[str, Kept] = {}
    for part in text.split(","):
        state, equals, age = part.strip().partition("=")
        if state not in STATES or not equals:
            raise ArgumentTypeError(f"{part[:40]!r} is not STATE=AGE; states are {', '.join(STATES)}")
        if state in found:
            raise ArgumentTypeError(f"{state!r} is given twice")
        try:
            found[state] = Kept(parse_seconds(age, zero=True, years=YEARS_MAX))
        except InvalidValue as error:
            raise ArgumentTypeError(str(error)) from None
    return found


def _declare(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--state", type=_states, metavar="STATE=AGE,...", help="delete only these, as done=7d,failed=90d")
    add("--queue", action="append", metavar="NAME", help="only jobs of this queue; may be repeated")
    add("--batch", type=count(10_000), default=1000, metavar="N", help="jobs of one transaction (default 1000)")
    add("--sleep", type=duration_or_zero, default=0.05, metavar="TIME", help="pause between two of them (default 50ms)")
    add("--max-time", type=duration, metavar="TIME", help=f"stop after this time; exit {FOUND} if more are left")
    add("--export", metavar="FILE", help="append the jobs and their attempts to FILE as JSON lines before")
    add("--archive", action="store_true", help="move the jobs to the table job_archive")
    add("--dry-run", action="store_true", help="count what would be deleted, and change nothing")
    add("--list", action="store_true", help="also print the id of each job")
    add("--yes", action="store_true", help="do not ask for confirmation; needed without a terminal")


def _run(using: str, given: dict[str, Any]) -> Iterator[Result]:
    """Delete in short transactions; 5 if it stopped before all were deleted, or if the answer is no."""
    found = _found_by(given)
    if given["export"] == "":
        raise InvalidValue("--export needs the name of a file. Nothing was deleted.")
    if given["dry_run"]:
        yield _told(_count(found(using, False), given), given, "would be deleted")
        return
    if not given["yes"] and not _is_confirmed(found, using, given):
        yield Result({"pruned": None}, ["nothing was changed"], FOUND)
        return
    done = _Counts(lists=given["list"])
    try:
        with ExitStack() as stack:
            try:
                _prune(found, using, given, _keep(given, stack), done)
            finally:
                audit("prune", _chosen(given), changed=done.total, using=using)
    except (OSError, KeyboardInterrupt) as error:
        done.complete = False
        yield _told(done, given, "were deleted", NO_SUCH_ID)
        why = error.strerror if isinstance(error, OSError) else "it was interrupted"
        complain(f"{why}; the other jobs are not deleted")
    else:
        yield _told(done, given, "were archived" if given["archive"] else "were deleted")


def _chosen(given: Mapping[str, Any]) -> dict[str, str]:
    """The filters, for the audit."""
    states, queues = given["state"], given["queue"]
    return ({"state": ",".join(states)} if states else {}) | ({"queue": ",".join(queues)} if queues else {})


#: what may be deleted, on a database; whether expiries may be written
_Found = Callable[[str, bool], Iterator[Chosen | None]]


def _found_by(given: Mapping[str, Any]) -> _Found:
    settings = load()
    queues: Sequence[str] | None = given["queue"]
    for name in queues or ():
        check_queue(name)
    chosen: Mapping[str, Kept] | None = given["state"]
    if chosen is None:
        policy = settings.queue_retention
    else:
        known = chosen

        def policy(queue: str, state: str) -> Kept:
            return known.get(state, Kept())

    walk = Walk(policy, settings.dedupe_seconds, queues)
    if not _is_of_all(given):
        return lambda using, writes: walk.chosen(using)
    return lambda using, writes: chain(
        results_past_ttl(settings.dedupe_seconds, using=using, writes=writes), walk.chosen(using)
    )


def _is_of_all(given: Mapping[str, Any]) -> bool:
    """Return whether results past their time and the other tables are pruned, too."""
    return given["state"] is None and given["queue"] is None


def _is_confirmed(found: _Found, using: str, given: Mapping[str, Any]) -> bool:
    asked = _count(found(using, False), given)
    others = ", and old rows of other tables" if _is_of_all(given) else ""
    return confirm(f"Delete {count_of(asked.total, 'ended job')}{others}?", yes=False)


def _keep(given: Mapping[str, Any], stack: ExitStack) -> Callable[[str, str], Keep | None]:
    """Return what stores the jobs of a queue and state before they are deleted, as the options and RETENTION ask."""
    settings, file = load(), None
    if given["export"]:
        try:
            file = stack.enter_context(json_lines(given["export"]))
        except OSError as error:
            raise InvalidValue(f"--export {given['export']}: {error.strerror}. Nothing was deleted.") from None

    def keep_of(queue: str, state: str) -> Keep | None:
        archives = given["archive"] or settings.queue_retention(queue, state).archive
        if not archives:
            return file

        def both(job_ids: Sequence[int], using: str) -> Callable[[], None] | None:
            archive(job_ids, using)
            return file(job_ids, using) if file is not None else None

        return both

    return keep_of


def _count(found: Iterator[Chosen | None], given: Mapping[str, Any]) -> _Counts:
    counts, over = _Counts(lists=given["list"]), _clock(given)
    for chosen in found:
        if chosen is not None:
            counts.add(chosen, chosen.ended)
        if over():
            counts.complete = False
            break
    return counts


def _clock(given: Mapping[str, Any]) -> Callable[[], bool]:
    """A function that tells whether the time of --max-time is over, which begins now."""
    begun = time.monotonic()
    return lambda: given["max_time"] is not None and time.monotonic() - begun >= given["max_time"]


def _prune(
    found: _Found, using: str, given: Mapping[str, Any], keep_of: Callable[[str, str], Keep | None], done: _Counts
) -> None:
    begun, over, deletions = time.monotonic(), _clock(given), Deletions(given["batch"])
    shows = given["verbosity"] > 0 and not given["json"] and sys.stderr.isatty()

    for chosen in found(using, True):
        if chosen is not None:
            deletions.add(chosen)
        while deletions and done.complete:
            done.add(*deletions.next(keep_of, using))
            if shows:
                sys.stderr.write(f"\r{done.total} jobs in {format_seconds(time.monotonic() - begun)} ")
                sys.stderr.flush()
            time.sleep(given["sleep"])
            done.complete = not over()
        if not done.complete or over():
            done.complete = False
            break
    if shows and done.total:
        sys.stderr.write("\r")
    for name, cleaner in CLEANERS.items() if _is_of_all(given) and done.complete else ():
        done.rows[name] = cleaner.run_once(load(), using=using, seconds=OTHER_SECONDS).total()


def _told(found: _Counts, given: Mapping[str, Any], what: str, status: int | None = None) -> Result:
    jobs = [{"queue": q, "state": state, "jobs": number} for (q, state), number in sorted(found.jobs.items())]
    facts = {"dry_run": given["dry_run"], "complete": found.complete, "total": found.total}
    listed = {"ids": found.ids} if given["list"] else {}
    document = {**facts, "jobs": jobs, "other_rows": found.rows, **listed}
    return Result(document, _lines(found, given, what), status or (0 if found.complete else FOUND))


def _lines(found: _Counts, given: Mapping[str, Any], what: str) -> Iterator[str]:
    rows = [(str(number), state, queue) for (queue, state), number in sorted(found.jobs.items())]
    yield from aligned(rows, numbers=(0,)) if rows else ()
    yield from map(str, found.ids if given["list"] else ())
    yield f"{count_of(found.total, 'ended job')} {what if found.total != 1 else what.replace('were', 'was')}"
    if others := sum(found.rows.values()):
        yield f"{count_of(others, 'old row')} of other tables {'were' if others != 1 else 'was'} deleted"
    if not found.complete:
        yield "stopped early: there may be more"


PRUNE = Subcommand("Delete ended jobs that are old or many enough, and old rows of the other tables.", _declare, _run)
