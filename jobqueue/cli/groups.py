"""jobs groups: list groups and workflows, newest first, or show, seal, cancel or resume one."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import OutputWrapper

from jobqueue import groups
from jobqueue.cli.arguments import FOUND, add_database, add_json, count, tell_of_more
from jobqueue.cli.audited import audit
from jobqueue.exceptions import InvalidValue
from jobqueue.groups import Group
from jobqueue.log_format import one_line

_INSTANTS = ("created_at", "sealed_at", "canceled_at", "ended_at")


def declare(parser: ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="VERB ID",
        help="show, seal or cancel the group ID, or resume the workflow ID; without a verb, or with list, list groups",
    )
    parser.add_argument("--dry-run", action="store_true", help="with resume: only say which nodes would run again")
    parser.add_argument("--limit", type=count(10_000), default=20, metavar="N", help="number of groups (default 20)")
    parser.add_argument("--live", action="store_true", help="only groups that have not ended")
    add_json(parser)
    add_database(parser)


def run(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    verb, *ids = given["words"] or ["list"]
    if given["dry_run"] and verb != "resume":
        raise InvalidValue(f"--dry-run belongs to resume, not to {verb}. Nothing was changed.")
    if verb == "list" and not ids:
        found = groups.known(limit=given["limit"], ended=not given["live"], using=using)
        if given["json"]:
            out.write(json.dumps({"version": 1, "groups": [_facts(one) for one in found]}))
        elif given["verbosity"] > 0:
            for one in found:
                out.write(_line(one))
            tell_of_more(out, found, given)
            if not found:
                out.write("no group matches")
        return 0
    if verb not in ("show", "seal", "cancel", "resume") or len(ids) != 1:
        raise InvalidValue("jobs groups takes: list, show ID, seal ID, cancel ID or resume ID. Nothing was changed.")
    if verb == "resume":
        return _resume(ids[0], out, using, given)
    return _one(verb, ids[0], out, using, given)


def _one(verb: str, group_id: str, out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    changed = True
    if verb != "show":
        changed = (groups.seal if verb == "seal" else groups.cancel)(group_id, using=using)
        audit(verb, {"group": group_id}, changed=int(changed), using=using)
    group = groups.get(group_id, using=using)
    if given["json"]:
        facts = {} if verb == "show" else {"changed": changed}
        out.write(json.dumps({"version": 1, **facts, "group": _facts(group)}))
    elif given["verbosity"] > 0:
        out.write(_line(group) if changed else f"{_line(group)}; nothing was changed")
    return 0 if changed else FOUND


def _resume(group_id: str, out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    found = groups.resume(group_id, dry_run=given["dry_run"], using=using)
    if not found.dry_run:
        audit("resume", {"group": group_id}, changed=len(found.runs) + len(found.waits), using=using)
    if given["json"]:
        out.write(json.dumps({"version": 1, **asdict(found)}))
    elif given["verbosity"] > 0:
        would = "would run" if found.dry_run else "run"
        for name in found.runs:
            out.write(one_line(f"{name}: {would} again now"))
        for name in found.waits:
            out.write(one_line(f"{name}: {would} again after its parents"))
        if not found.runs and not found.waits:
            out.write("no node has failed or was canceled; nothing was changed")
    return 0 if found.runs or found.waits else FOUND


def _line(one: Group) -> str:
    state = "canceled" if one.canceled_at is not None and one.state != "ended" else one.state
    counts = f"{one.done} done, {one.failed} failed, {one.canceled} canceled of {one.total}"
    return one_line(f"#{one.id}  {one.name}  {state}  {counts}")


def _facts(one: Group) -> dict[str, Any]:
    facts = asdict(one) | {"outstanding": one.outstanding}
    return facts | {name: facts[name] and facts[name].isoformat(timespec="milliseconds") for name in _INSTANTS}
