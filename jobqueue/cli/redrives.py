"""jobs redrives: list the redrives of dead letters, and stop one."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import OutputWrapper

from jobqueue.cli.arguments import FOUND, add_database, add_json, count, tell_of_more
from jobqueue.cli.audited import audit
from jobqueue.cli.dead_letters import described, facts
from jobqueue.dead_letters import redrives, stop
from jobqueue.exceptions import InvalidValue
from jobqueue.log_format import one_line


def declare(parser: ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="stop ID", help="retry no more jobs of this redrive")
    parser.add_argument("--limit", type=count(1000), default=20, metavar="N", help="number of redrives (default 20)")
    add_json(parser)
    add_database(parser)


def run(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    if given["words"]:
        return _stop(out, using, given)
    found = redrives(limit=given["limit"], using=using)
    if given["json"]:
        out.write(json.dumps({"version": 1, "redrives": [facts(one) for one in found]}))
    elif given["verbosity"] > 0:
        for one in found:
            out.write(one_line(described(one)))
        tell_of_more(out, found, given)
        if not found:
            out.write("no redrive was recorded")
    return 0


def _stop(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    words = given["words"]
    if len(words) != 2 or words[0] != "stop":
        raise InvalidValue("jobs redrives takes either no words, or: stop ID. Nothing was changed.")
    done = stop(words[1], using=using)
    audit("stop", {"redrive": words[1]}, changed=int(done), using=using)
    if given["json"]:
        out.write(json.dumps({"version": 1, "stopped": done}))
    elif given["verbosity"] > 0:
        what = "is stopped" if done else "does not exist or has ended; nothing was changed"
        out.write(one_line(f"redrive {words[1]} {what}"))
    return 0 if done else FOUND
