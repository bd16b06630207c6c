"""A project that installs nothing but what the product needs."""

import subprocess
import sys

IMPORTS = """
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "jobqueue"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()
import jobqueue.transitions, jobqueue.worker.supervisor, jobqueue.management.commands.runworker
"""


def test_the_worker_can_be_imported_without_the_app_of_the_backport():
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
