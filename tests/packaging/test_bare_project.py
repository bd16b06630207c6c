"""A project that installs nothing but what the product needs."""

import subprocess
import sys

import django

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


WITHOUT_THE_BACKPORT = "import sys; sys.modules['django_tasks'] = None" + IMPORTS + "import jobqueue.backends"


def test_the_worker_can_be_imported_without_the_app_of_the_backport():
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_backport_is_needed_before_django_6_only_and_its_lack_is_told():
    done = subprocess.run([sys.executable, "-c", WITHOUT_THE_BACKPORT], capture_output=True, text=True, check=False)
    if django.VERSION >= (6, 0):
        assert done.returncode == 0, done.stderr
    else:
        assert "pip install django-tasks" in done.stderr
