"""jobs completion: print the script that lets bash or zsh complete sub-commands and options of jobs."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management import get_commands, load_command_class
from django.core.management.base import OutputWrapper

from jobqueue.cli.arguments import add_json
from jobqueue.cli.completion_scripts import bash, zsh
from jobqueue.cli.completion_words import words_of

SCRIPTS = {"bash": bash, "zsh": zsh}


def declare(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(SCRIPTS), help="the shell that is to complete")
    add_json(parser)
    # It reads no database.
    parser.set_defaults(database=None)


def run(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    # The parser of the command as it is in this project, with all sub-commands and Django's options.
    command = load_command_class(str(get_commands()["jobs"]), "jobs")
    script = SCRIPTS[given["shell"]](words_of(command.create_parser("manage.py", "jobs")))
    out.write(json.dumps({"version": 1, "shell": given["shell"], "script": script}) if given["json"] else script)
    return 0
