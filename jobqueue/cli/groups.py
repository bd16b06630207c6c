"""jobs groups: list groups, newest first, or show, seal or cancel one."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import OutputWrapper

from jobqueue import groups
from jobqueue.cli.arguments import FOUND, add_database, add_json, count
from jobqueue.exceptions import InvalidValue
from jobqueue.groups import Group
from jobqueue.log_format import one_line

_INSTANTS = ("created_at", "sealed_at", "canceled_at", "ended_at")


def declare(parser: ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="VERB ID",
        help="show, seal or cancel the group ID; without a verb, or with list, list groups",
    )
    parser.add_argument("--limit", type=count(10_000), default=20, metavar="N", help="number of groups (default 20)")
    parser.add_argument("--live", action="store_true", help="only groups that have not ended")
    add_json(parser)
    add_database(parser)


def run(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    verb, *ids = given["words"] or ["list"]
    if verb == "list" and not ids:
        found = groups.known(limit=given["limit"], ended=not given["live"], using=using)
        if given["json"]:
            out.write(json.dumps({"version": 1, "groups": [_facts(one) for one in found]}))
        elif given["verbosity"] > 0:
            for one in found:
                out.write(_line(one))
            if not found:
                out.write("no group matches")
        return 0
    if verb not in ("show", "seal", "cancel") or len(ids) != 1:
        raise InvalidValue("jobs groups takes: list, show ID, seal ID or cancel ID. Nothing was changed.")
    return _one(verb, ids[0], out, using, given)


def _one(verb: str, group_id: str, out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    changed = True
    if verb != "show":
        changed = (groups.seal if verb == "seal" else groups.cancel)(group_id, using=using)
    group = groups.get(group_id, using=using)
    if given["json"]:
        facts = {} if verb == "show" else {"changed": changed}
        out.write(json.dumps({"version": 1, **facts, "group": _facts(group)}))
    elif given["verbosity"] > 0:
        out.write(_line(group) if changed else f"{_line(group)}; nothing was changed")
    return 0 if changed else FOUND


def _line(one: Group) -> str:
    state = "canceled" if one.canceled_at is not None and one.state != "ended" else one.state
    counts = f"{one.done} done, {one.failed} failed, {one.canceled} canceled of {one.total}"
    return one_line(f"#{one.id}  {one.name}  {state}  {counts}")


def _facts(one: Group) -> dict[str, Any]:
    facts = asdict(one) | {"outstanding": one.outstanding}
    return facts | {name: facts[name] and facts[name].isoformat(timespec="milliseconds") for name in _INSTANTS}
