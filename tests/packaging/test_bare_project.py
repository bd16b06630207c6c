"""A project that installs nothing but what the product needs."""

import subprocess
import sys

import django
import pytest

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


ONLY_WHAT_IS_NEEDED = """
import django
from django.conf import settings
from django.core.management import call_command
settings.configure(
    INSTALLED_APPS=["jobqueue"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    TASKS={"default": {"BACKEND": "jobqueue.backends.JobQueueBackend"}},
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
)
django.setup()
import importlib, pathlib, jobqueue
"""
CHECK = ONLY_WHAT_IS_NEEDED + "call_command('check'); call_command('migrate', verbosity=0)"
ROOMS = (
    ONLY_WHAT_IS_NEEDED
    + """
root = pathlib.Path(jobqueue.__file__).parent
for file in sorted(root.rglob("*.py")):
    parts = file.relative_to(root.parent).with_suffix("").parts
    if parts[1] not in ("admin", "migrations", "otel"):
        importlib.import_module(".".join(parts))
"""
)


@pytest.mark.parametrize("program", [CHECK, ROOMS], ids=["check and migrate", "every module but the admin's"])
def test_a_project_without_the_admin_and_the_other_apps_of_django_can_use_it(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
