"""A project that installs nothing but what the product needs."""

import os
import subprocess
import sys
from pathlib import Path

import django
import pytest

from tests.marks import finding

ROOT = Path(__file__).parents[2]

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


@finding("N1")
@pytest.mark.parametrize("program", [CHECK, ROOMS], ids=["check and migrate", "every module but the admin's"])
def test_a_project_without_the_admin_and_the_other_apps_of_django_can_use_it(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


PROJECT = """
import os, sys
from django.apps import AppConfig
from django.conf import settings
from django.core.management import execute_from_command_line

class Orders(AppConfig):
    name, label, enqueues = "orders", "orders", None

    def ready(self):
        if "ENQUEUES" in os.environ:
            from jobqueue import enqueue
            enqueue("mail", 1, dedupe_key=os.environ["ENQUEUES"] or None)

if __name__ == "__main__":
    settings.configure(
        INSTALLED_APPS=["jobqueue", "orders.Orders"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["NAME"]}},
        TASKS={"default": {"BACKEND": "jobqueue.backends.JobQueueBackend"}},
    )
    execute_from_command_line(sys.argv)
"""


@pytest.fixture
def manage(tmp_path):
    """manage(*words, NAME=..., **environment): a command of a project that enqueues in ready() if it is told to."""
    (tmp_path / "orders.py").write_text(PROJECT)

    def manage(*words, NAME=tmp_path / "db.sqlite3", **environment):
        return subprocess.run(
            [sys.executable, "-W", "ignore::RuntimeWarning", tmp_path / "orders.py", *words],
            env={**os.environ, "PYTHONPATH": str(ROOT), "NAME": str(NAME), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return manage


@pytest.mark.parametrize("words", [["runworker", "--drain"], ["runworker", "--dry-run"], ["jobs", "list"]])
def test_a_database_in_memory_is_named_and_not_a_migration_that_was_forgotten(manage, words):
    done = manage(*words, NAME=":memory:")
    assert done.returncode == (4 if words == ["runworker", "--drain"] else 3)
    assert "in memory: each process" in done.stderr
    assert "Run: python manage.py migrate" not in done.stderr


def test_a_job_of_ready_on_a_fresh_database_is_named_as_the_reason_why_migrate_fails(manage):
    done = manage("migrate", ENQUEUES="")
    assert done.returncode != 0
    assert "probably by an AppConfig.ready(), which migrate runs, too" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(("key", "warned"), [("", True), ("once", False)])
def test_a_job_of_ready_is_warned_of_as_each_process_adds_one(manage, key, warned):
    assert manage("migrate").returncode == 0
    done = manage("check", ENQUEUES=key)
    assert done.returncode == 0
    assert (
        "a job of queue mail is added before Django is ready, probably by an AppConfig.ready()" in done.stderr
    ) == warned


SETTINGS = """
INSTALLED_APPS = ["jobqueue", "orders"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
TASKS = {"default": {"BACKEND": "jobqueue.backends.JobQueueBackend"}}
USE_TZ, TIME_ZONE, SECRET_KEY = False, "Asia/Seoul", "only for tests"
"""
TASKS = """
from jobqueue import current_job, task

@task
def tells(number):
    return number

@task(max_attempts=2, backoff=3600)
def fails():
    raise ValueError("as it should")
"""
ENQUEUES = """
from datetime import UTC, datetime, timedelta
from jobqueue.models import Job
from orders.tasks import fails, tells

soon, now = timedelta(minutes=1), datetime.now()
first, due = tells.enqueue(1), tells.using(run_after=now - soon).enqueue(2)
later, failing = tells.using(run_after=now + 60 * soon).enqueue(3), fails.enqueue()
assert 59 * soon < Job.objects.get(pk=later.id).run_at - datetime.now(UTC) <= 60 * soon
assert abs(first.enqueued_at - datetime.now(UTC)) < 10 * soon
print(first.id, due.id, later.id, failing.id)
"""
READS = """
import sys
from datetime import UTC, datetime, timedelta
from jobqueue.models import Job
from jobqueue.transitions import claim, retry
from orders.tasks import fails, tells

first, due, later, failing = sys.argv[1:]
for number, result_id in enumerate([first, due], 1):
    result = tells.get_result(result_id)
    assert result.return_value == number
    assert result.enqueued_at <= result.started_at <= result.finished_at <= datetime.now(UTC)
assert tells.get_result(later).status == "READY"
again = fails.get_result(failing)
assert (again.status, len(again.errors)) == ("READY", 1)
assert retry(int(failing))
(lease,) = claim("default", worker="w")
assert lease.job_id == int(failing)
assert timedelta(seconds=50) < lease.lock_until - datetime.now(UTC) <= timedelta(seconds=61)
"""


def test_a_project_without_time_zones_enqueues_runs_and_reads(tmp_path):
    files = {"project.py": SETTINGS, "orders/__init__.py": "", "orders/tasks.py": TASKS}
    (tmp_path / "orders").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    def python(*words):
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", "DJANGO_SETTINGS_MODULE": "project"}
        done = subprocess.run(
            [sys.executable, *words], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    python("-m", "django", "migrate", "--verbosity", "0")
    ids = python("-c", f"import django; django.setup(){ENQUEUES}").split()
    python("-m", "django", "runworker", "--drain")
    python("-c", f"import django; django.setup(){READS}", *ids)
