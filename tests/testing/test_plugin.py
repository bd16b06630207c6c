"""The pytest plugin, found as an installed package's entry point, in projects of their own."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import django
import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = """
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = [BACKPORT "django.contrib.contenttypes", "django.contrib.auth", "jobqueue", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
TASKS = {"default": {"BACKEND": "jobqueue.backends.JobQueueBackend", "QUEUES": []}}
""".replace("BACKPORT", '"django_tasks",' if django.VERSION < (6, 0) else "")
TASKS = """
from django.contrib.auth.models import User
from jobqueue import task

@task
def welcome(name):
    User.objects.create(username=name)
"""
TESTS = """
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import TestCase
from django.utils import timezone
from shop.tasks import welcome

def test_inline(jobqueue_inline):
    welcome.enqueue("ada")
    assert User.objects.count() == jobqueue_inline.ran == 1

def test_drain(jobqueue_drain):
    welcome.using(run_after=timezone.now() + timedelta(hours=1)).enqueue("ada")
    assert jobqueue_drain().ran == 0
    assert jobqueue_drain(until=timedelta(hours=2)).ran == 1

def test_travel(jobqueue_drain, jobqueue_travel):
    welcome.using(run_after=timezone.now() + timedelta(hours=1)).enqueue("ada")
    jobqueue_travel(timedelta(minutes=30))
    assert jobqueue_drain().ran == 0
    jobqueue_travel(timedelta(minutes=31))
    assert jobqueue_drain().ran == 1

@pytest.mark.django_db(transaction=True)
def test_commits(jobqueue_inline):
    welcome.enqueue("ada")
    assert User.objects.count() == 1

@pytest.mark.usefixtures("jobqueue_inline")
class Case(TestCase):
    def test_case(self):
        welcome.enqueue("ada")
        assert User.objects.count() == 1
"""


@pytest.fixture
def run_pytest(tmp_path):
    """Run pytest on files in a folder of their own, with jobqueue installed as far as entry points go."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    info = tmp_path / "site" / "jobqueue-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: jobqueue\nVersion: 0.1.0\n")
    lines = [f"{name} = {module}" for name, module in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))

    def run(files, *options):
        for name, text in files.items():
            path = tmp_path / "project" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        env = {key: value for key, value in os.environ.items() if not key.startswith(("JOBQUEUE_", "DJANGO_"))}
        env["PYTHONPATH"] = f"{tmp_path / 'site'}:{ROOT}:{tmp_path / 'project'}"
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *options]
        done = subprocess.run(argv, cwd=tmp_path / "project", env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


def test_its_fixtures_run_jobs_in_a_project_with_pytest_django(run_pytest):
    files = {"shop/__init__.py": "", "shop/tasks.py": TASKS, "settings.py": SETTINGS, "test_shop.py": TESTS}
    status, said = run_pytest({**files, "pytest.ini": "[pytest]\nDJANGO_SETTINGS_MODULE = settings\n"})
    assert status == 0, said
    assert "5 passed" in said


def test_a_project_without_django_settings_is_left_alone(run_pytest):
    test = """
import sys

def test_nothing_of_django_is_there():
    assert not [name for name in sys.modules if name.startswith("jobqueue.models") or name == "django.apps.registry"]
"""
    status, said = run_pytest({"test_plain.py": test, "pytest.ini": "[pytest]\n"}, "-p", "no:django", "-W", "error")
    assert status == 0, said
    status, said = run_pytest({}, "-p", "no:django", "--fixtures")
    assert "jobqueue_inline" in said
