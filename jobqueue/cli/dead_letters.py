"""Sub-commands about dead letters: retry them, list and stop redrives, and write notes on failures of one kind."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from django.db import transaction

from jobqueue.cli.arguments import FOUND, count, read_words
from jobqueue.cli.audited import audit, change_each
from jobqueue.cli.output import Result, Results, Subcommand, confirm, instant, listed
from jobqueue.dead_letters import Note, Redriven, note, notes, redrive, redrives, stop
from jobqueue.dead_letters.noting import notes_on
from jobqueue.exceptions import InvalidValue
from jobqueue.log_format import count_of, one_line
from jobqueue.masking import mask_text
from jobqueue.models import Job
from jobqueue.runs.job_filter import FILTERS, DeadFilter, Filter, check_fingerprint
from jobqueue.transitions import retry
from jobqueue.worker.alone import run_alone

_NOTE_CHARS = 200
#: the filters of redrive() that are options
_FILTERS = {name: FILTERS[name] for name in DeadFilter.__annotations__ if FILTERS[name].option is not None}


def add_filter(parser: ArgumentParser, filters: Mapping[str, Filter] = FILTERS) -> None:
    """Declare the options of those filters that have one."""
    for name, one in filters.items():
        if one.option is not None:
            metavar, meaning = one.option
            parser.add_argument(f"--{name}", default=None, metavar=metavar, help=meaning)


def filter_of(given: dict[str, Any], filters: Mapping[str, Filter] = FILTERS) -> dict[str, str]:
    """The options of add_filter() that were given."""
    return {name: given[name] for name, one in filters.items() if one.option is not None and given[name] is not None}


def shortened(note: str) -> str:
    """The beginning of a note in one line."""
    text = one_line(" ".join(note.split()))
    return text if len(text) <= _NOTE_CHARS else f"{text[:_NOTE_CHARS]}..."


def _declare_retry(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("ids", nargs="*", metavar="ID", help="the id of a job")
    add(
        "--alone",
        action="store_true",
        help="run them here, each in a process of its own: for quarantined jobs, which kill their worker",
    )
    add_filter(parser, _FILTERS)
    add("--everything", action="store_true", help="all dead letters")
    add("--limit", type=count(10**9), default=None, metavar="N", help="at most N dead letters, the oldest first")
    add("--canary", type=count(1000), default=0, metavar="N", help="retry N jobs first, the others when these pass")
    add("--rate", default=None, metavar="R", help="at most this many jobs per period: 50/s, 100/m")
    add("--dry-run", action="store_true", help="show what would be retried, and change nothing")
    add("--yes", action="store_true", help="do not ask for confirmation; needed without a terminal")


def _retry(using: str, given: dict[str, Any]) -> Results:
    options = {name: given[name] for name in ("everything", "limit", "canary", "rate", "dry_run") if given[name]}
    # A dry run of ids alone shows what the same command does without --dry-run.
    if filter_of(given, _FILTERS) or options.keys() - ({"dry_run"} if given["ids"] and not given["alone"] else set()):
        return _redrive(using, given, options)
    if not given["ids"]:
        raise InvalidValue("jobs retry needs ids of jobs, or a filter such as --fingerprint. Nothing was changed.")
    verb = _alone if given["alone"] else _tried if given["dry_run"] else _retried
    done, not_done = ("would be", "would not be changed") if given["dry_run"] else ("is now", "was not changed")
    why = f"{not_done}: its state, its dedupe key or its ordering key forbids it"

    def told(found: Mapping[int, str | None]) -> Result:
        return Result(
            {"jobs": [{"id": job_id, "state": state} for job_id, state in found.items()]},
            [f"job {job_id} {f'{done} {state}' if state else why}" for job_id, state in found.items()],
            0 if all(found.values()) else FOUND,
        )

    recorded = None if given["dry_run"] else "retry"
    return change_each(recorded, given["ids"], lambda job_id: verb(job_id, using), told, using=using)


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


def _redrive(using: str, given: dict[str, Any], options: dict[str, Any]) -> Result:
    """Record a redrive of the dead letters that match; 5 if there is none, or if the answer is no."""
    if given["alone"]:
        raise InvalidValue("--alone takes ids of jobs, no filter and no canary or rate. Nothing was changed.")
    wanted: dict[str, Any] = {**filter_of(given, _FILTERS), "using": using}
    if given["ids"]:
        wanted["job_ids"] = given["ids"]
    found = redrive(**wanted, **{**options, "dry_run": True})
    if not given["dry_run"] and found.matched:
        if not confirm(f"Retry {_of(found)}?", yes=given["yes"]):
            return Result({"redrive": None}, ["nothing was changed"], FOUND)
        found = redrive(**wanted, **options)
        audit("redrive", {"redrive": str(found.id)}, changed=found.matched, using=using)
    return Result({"redrive": asdict(found)}, [_said(found)], 0 if found.matched else FOUND)


def _said(found: Redriven) -> str:
    if not found.matched:
        return "no dead letter matches; nothing was recorded"
    if found.id is None:
        return f"{_of(found)} would be retried; nothing was changed"
    return f"{_described(found)}. Workers carry it out; see: manage.py jobs redrives"


def _of(found: Redriven) -> str:
    chosen = count_of(found.wanted, "dead letter")
    return chosen if found.wanted == found.matched else f"{chosen} of the {found.matched} that match"


def _described(run: Redriven) -> str:
    """A redrive in one line."""
    wanted = ", ".join(f"{name} {_short(value)}" for name, value in (run.filters or {}).items()) or "everything"
    parts = [f"redrive {run.id}", run.state, f"{run.redriven} of {count_of(run.wanted, 'job')}", wanted]
    parts += ["alone"] if run.alone else []
    parts += [f"{run.skipped} skipped"] if run.skipped else []
    parts += [f"canary {run.canary}"] if run.canary else []
    parts += [f"{run.per_second:g}/s"] if run.per_second else []
    return "  ".join([*parts, *([run.reason] if run.reason else [])])


def _short(value: object) -> str:
    return f"({len(value)})" if isinstance(value, list) else str(value)


def _declare_redrives(parser: ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="stop ID", help="retry no more jobs of this redrive")
    parser.add_argument("--limit", type=count(1000), default=20, metavar="N", help="number of redrives (default 20)")


def _redrives(using: str, given: dict[str, Any]) -> Result:
    verb, *ids = read_words(given, {"list": (), "stop ID": ()})
    if verb == "list":
        found = redrives(limit=given["limit"], using=using)
        lines = listed(map(_described, found), found, given, "no redrive was recorded")
        return Result({"redrives": list(map(asdict, found))}, lines)
    (number,) = ids
    done = stop(number, using=using)
    audit("stop", {"redrive": number}, changed=int(done), using=using)
    what = "is stopped" if done else "does not exist or has ended; nothing was changed"
    return Result({"stopped": done}, [f"redrive {number} {what}"], 0 if done else FOUND)


def _declare_note(parser: ArgumentParser) -> None:
    parser.add_argument(
        "fingerprint",
        nargs="?",
        default=None,
        metavar="FINGERPRINT",
        help="failures of this kind; else list all notes",
    )
    parser.add_argument("--text", default=None, metavar="TEXT", help='write this note; "" removes it')
    parser.add_argument("--by", default="", metavar="NAME", help="who writes it")
    parser.add_argument("--limit", type=count(1000), default=100, metavar="N", help="number of notes (default 100)")


def _note(using: str, given: dict[str, Any]) -> Result:
    kind, text = given["fingerprint"], given["text"]
    if text is None and given["by"]:
        raise InvalidValue("--by goes with --text. Nothing was written.")
    if kind is None:
        if text is not None:
            raise InvalidValue("jobs note --text needs the fingerprint of a failure: see jobs list --groups.")
        every = notes(limit=given["limit"], using=using)
        lines = (f"{_head(one)}  {shortened(one.text)}" for one in every)
        return Result({"notes": list(map(asdict, every))}, listed(lines, every, given, "no note was written"))
    if text is not None:
        return _write_note(kind, text, given["by"], using)
    found = notes_on([check_fingerprint(kind)], using=using).get(kind)
    if found is None:
        return Result({"note": None}, [f"there is no note on {kind}"], FOUND)
    # Masked as a whole: a secret may have several lines.
    return Result({"note": asdict(found)}, [_head(found), *mask_text(found.text).splitlines()])


def _write_note(kind: str, text: str, by: str, using: str) -> Result:
    changed = note(kind, text, by=by, using=using)
    found = notes_on([kind], using=using).get(kind)
    if found is not None:
        said = f"{kind} has this note now; all jobs that fail like that show it"
    else:
        said = f"the note on {kind} is removed" if changed else f"there is no note on {kind}; nothing was changed"
    facts = None if found is None else asdict(found)
    return Result({"changed": changed, "note": facts}, [said], 0 if changed else FOUND)


def _head(found: Note) -> str:
    parts = [found.fingerprint, str(instant(found.updated_at)), found.by]
    return "  ".join(filter(None, parts))


RETRY = Subcommand(
    "Run failed, canceled, delayed or held jobs again, by id or filter, or alone in a process of their own.",
    _declare_retry,
    _retry,
)
REDRIVES = Subcommand("List the redrives of dead letters, and stop one.", _declare_redrives, _redrives)
NOTE = Subcommand("Write, remove, print or list notes on failures of one kind.", _declare_note, _note)
