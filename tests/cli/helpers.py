"""What the tests of commands share."""

import pytest
from django.core.management import ManagementUtility

from jobqueue.cli import worker_options
from jobqueue.management.commands.runworker import Command as RunWorker


def refused(capsys, *words):
    """What a command that exits with 2 says."""
    with pytest.raises(SystemExit) as stopped:
        ManagementUtility(["manage.py", *words]).execute()
    said = capsys.readouterr().err
    assert stopped.value.code == 2, said
    assert "Traceback" not in said
    assert said.strip()
    return said


def options(*words):
    """The Options that these words give."""
    parser = RunWorker().create_parser("manage.py", "runworker")
    return worker_options.build(vars(parser.parse_args(list(words))))
