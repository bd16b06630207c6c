"""Commands as processes of their own, on the database of the tests."""

import os
import subprocess
import sys
from contextlib import contextmanager

from django.db import connection

from tests.launch import ROOT

#: a shell starts what it puts in the background with SIGINT ignored, and a command inherits that
_CODE = """
import signal, sys
from django.core.management import execute_from_command_line
signal.signal(signal.SIGINT, signal.default_int_handler)
execute_from_command_line(sys.argv)
"""


@contextmanager
def start(*words, **streams):
    """`manage.py jobs` with these words; it is killed at the end of the block."""
    name = str(connection.settings_dict["NAME"])
    env = os.environ | {"JOBQUEUE_TEST_NAME": name, "DJANGO_SETTINGS_MODULE": "tests.settings_process"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    with subprocess.Popen([sys.executable, "-c", _CODE, "jobs", *words], cwd=ROOT, env=env, **streams) as process:
        try:
            yield process
        finally:
            process.kill()
