"""What the tests of commands share."""

import json
import os
import select
from io import StringIO

import pytest
from django.core.management import ManagementUtility, call_command

from jobqueue.cli import worker_options
from jobqueue.management.commands.runworker import Command as RunWorker
from tests.patience import wait_until


class Terminal(StringIO):
    """The standard input of somebody who answers."""

    def isatty(self):
        return True


def refused(capsys, *words):
    """What a command that exits with 2 says."""
    with pytest.raises(SystemExit) as stopped:
        ManagementUtility(["manage.py", *words]).execute()
    said = capsys.readouterr().err
    assert stopped.value.code == 2, said
    assert "Traceback" not in said
    assert said.strip()
    return said


def read_until(stream, words):
    """What `stream` gives until it holds `words`."""
    text = ""

    def look():
        nonlocal text
        while words not in text and select.select([stream], [], [], 0)[0]:
            read = os.read(stream, 4096)
            assert read, f"{words!r} is not in {text!r}, and that was all"
            text += read.decode(errors="replace")
        return words in text

    wait_until(look, what=lambda: f"{words!r} in {text!r}")
    return text


def printed(*words, status=0):
    """What `manage.py jobs words...` prints; it must end with this status."""
    out, ended = StringIO(), 0
    try:
        call_command("jobs", *words, stdout=out)
    except SystemExit as stopped:
        ended = stopped.code
    assert ended == status
    return out.getvalue()


def read_json(*words, status=0):
    """The document that it prints with --json, of version 1, without the version."""
    found = json.loads(printed(*words, "--json", status=status))
    assert found.pop("version") == 1
    return found


def options(*words):
    """The Options that these words give."""
    parser = RunWorker().create_parser("manage.py", "runworker")
    return worker_options.build(vars(parser.parse_args(list(words))))
