"""The sub-command groups: list groups and workflows, newest first, or show, seal, cancel or resume one."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from jobqueue import groups
from jobqueue.cli.arguments import FOUND, count, read_words
from jobqueue.cli.audited import audit
from jobqueue.cli.output import Result, Subcommand, listed
from jobqueue.groups import Group


def _declare(parser: ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="VERB ID",
        help="show, seal or cancel the group ID, or resume the workflow ID; without a verb, or with list, list groups",
    )
    parser.add_argument("--dry-run", action="store_true", help="with resume: only say which nodes would run again")
    parser.add_argument("--limit", type=count(10_000), default=20, metavar="N", help="number of groups (default 20)")
    parser.add_argument("--live", action="store_true", help="only groups that have not ended")


def _groups(using: str, given: dict[str, Any]) -> Result:
    verb, *ids = read_words(
        given, {"list": (), "show ID": (), "seal ID": (), "cancel ID": (), "resume ID": ("dry_run",)}
    )
    if verb == "list":
        found = groups.known(limit=given["limit"], ended=not given["live"], using=using)
        lines = listed(map(_line, found), found, given, "no group matches")
        return Result({"groups": list(map(_facts, found))}, lines)
    if verb == "resume":
        return _resume(ids[0], using, dry_run=given["dry_run"])
    if verb == "show":
        group = groups.get(ids[0], using=using)
        return Result({"group": _facts(group)}, [_line(group)])
    changed = (groups.seal if verb == "seal" else groups.cancel)(ids[0], using=using)
    audit(verb, {"group": ids[0]}, changed=int(changed), using=using)
    group = groups.get(ids[0], using=using)
    said = _line(group) if changed else f"{_line(group)}; nothing was changed"
    return Result({"changed": changed, "group": _facts(group)}, [said], 0 if changed else FOUND)


def _resume(group_id: str, using: str, *, dry_run: bool) -> Result:
    found = groups.resume(group_id, dry_run=dry_run, using=using)
    if not found.dry_run:
        audit("resume", {"group": group_id}, changed=len(found.runs) + len(found.waits), using=using)
    would = "would run" if found.dry_run else "run"
    lines = [f"{name}: {would} again now" for name in found.runs]
    lines += [f"{name}: {would} again after its parents" for name in found.waits]
    nothing = "no node has failed or was canceled; nothing was changed"
    return Result(asdict(found), lines or [nothing], 0 if lines else FOUND)


def _line(one: Group) -> str:
    state = "canceled" if one.canceled_at is not None and one.state != "ended" else one.state
    counts = f"{one.done} done, {one.failed} failed, {one.canceled} canceled of {one.total}"
    return f"#{one.id}  {one.name}  {state}  {counts}"


def _facts(one: Group) -> dict[str, Any]:
    return asdict(one) | {"outstanding": one.outstanding}


GROUPS = Subcommand("List groups and workflows, newest first, or show, seal, cancel or resume one.", _declare, _groups)
