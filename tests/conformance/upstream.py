"""python upstream.py SUITE FOLDER...: run one upstream suite against JobQueueBackend; what came of it as JSON.

A script in a process of its own: upstream has packages that are named like our tests. Little is rewritten: the class
that a suite tests is replaced by ours before its tests are imported, and all of them may use the database.

django, backport: FOLDER is Django's source. Its tests/tasks run on django.tasks, before Django 6 on the backport.
django-tasks-db: FOLDERs are its source and Django's, whose tests/tasks/tasks.py has the tasks that its tests name.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import logging
import os
import sys
import tempfile
import types
import unittest
from collections import Counter
from pathlib import Path

from skipped import SUITES

ROOT = Path(__file__).parents[2]
DUMMY, IMMEDIATE = "django.tasks.backends.dummy", "django.tasks.backends.immediate"
DB = "django_tasks_db"


def main(suite: str, folders: list[str]) -> int:
    """Print {"run": n, "passed": n, "failed": {id: traceback}, "skipped": {name: n}}."""
    # Suites call synchronous methods in coroutines, which only a backend in memory allows.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    sys.path[:0] = [str(ROOT), *folders]
    with tempfile.TemporaryDirectory() as scratch:
        configure(suite, scratch)
        print(json.dumps(run(FIND[suite](*map(Path, folders)), SUITES[suite])))
    return 0


def configure(suite: str, scratch: str) -> None:
    """A project with our app on SQLite; before Django 6 the backport answers to django.tasks too."""
    import django
    from django.conf import settings

    apps = ["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages"]
    theirs = [DB] if suite == "django-tasks-db" else []
    backend = f"{DB}.DatabaseBackend" if theirs else f"{DUMMY}.DummyBackend"
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{scratch}/db", "TEST": {"NAME": f"{scratch}/test"}}
    settings.configure(
        INSTALLED_APPS=[*apps, *theirs, "jobqueue"],
        DATABASES={"default": {**database, "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20}}},
        TASKS={"default": {"BACKEND": backend, "QUEUES": ["default", "queue-1"]}},
        JOBQUEUE={"MAX_ATTEMPTS": 1},
        USE_TZ=True,
    )
    django.setup()
    # Only now: both packages have found the Tasks that are really there.
    importlib.import_module("jobqueue.backends")
    if django.VERSION < (6, 0):
        alias_the_backport()


def alias_the_backport() -> None:
    """The names of django.tasks for the modules of the backport, with the names that Django gave its exceptions."""
    import django_tasks.signals

    for name in ("", ".base", ".exceptions", ".signals", ".backends", ".backends.base", ".backends.dummy",
                 ".backends.immediate"):  # fmt: skip
        sys.modules["django.tasks" + name] = importlib.import_module("django_tasks" + name)
    exceptions = django_tasks.exceptions
    exceptions.InvalidTask = exceptions.InvalidTaskError
    exceptions.InvalidTaskBackend = exceptions.InvalidTaskBackendError
    django_tasks.signals.logger = logging.getLogger("django.tasks")


def backend() -> type:
    """JobQueueBackend, and the two attributes of the dummy backend that the suites use to look and to clean."""
    from jobqueue.backends import JobQueueBackend
    from jobqueue.models import Job

    class Backend(JobQueueBackend):
        @property
        def results(self) -> list:
            return [self.get_result(str(pk)) for pk in Job.objects.order_by("pk").values_list("pk", flat=True)]

        def clear(self) -> None:
            Job.objects.all().delete()

    return Backend


def working_backend() -> type:
    """JobQueueBackend with a worker's turn at the end of every enqueue, and without retries."""
    from types import SimpleNamespace

    from asgiref.sync import async_to_sync

    from jobqueue.backends import JobQueueBackend
    from jobqueue.transitions import claim
    from jobqueue.worker.child.outcomes import settle
    from jobqueue.worker.run.perform import Run, is_coroutine, perform, perform_coroutine
    from jobqueue.worker.run.timeouts import Watch
    from jobqueue.worker.shared.scoreboard import LeaseSlot

    class WorkingBackend(JobQueueBackend):
        def enqueue(self, task: object, args: object, kwargs: object) -> object:
            result = super().enqueue(task, args, kwargs)
            (lease,) = claim(task.queue_name, worker="conformance")
            if is_coroutine(lease):
                outcome = async_to_sync(perform_coroutine)(lease, LeaseSlot(), lambda: False)
            else:
                (outcome,) = perform([lease], Run(LeaseSlot(), Watch(), lambda: False))
            settle([outcome], SimpleNamespace(finished=0, failed=0, lost=0))
            return self.get_result(result.id)

    return WorkingBackend


def django_cases(django: Path) -> list[unittest.TestCase]:
    """Django's tests of tasks and of a backend that keeps them."""
    sys.path.insert(0, str(django / "tests"))
    importlib.import_module(DUMMY).DummyBackend = backend()
    return [*cases_of("tasks.test_tasks"), *cases_of("tasks.test_dummy_backend")]


def running_cases(django: Path) -> list[unittest.TestCase]:
    """Django's tests of a backend that runs tasks."""
    sys.path.insert(0, str(django / "tests"))
    importlib.import_module(IMMEDIATE).ImmediateBackend = working_backend()
    return cases_of("tasks.test_immediate_backend")


def db_cases(db: Path, django: Path) -> list[unittest.TestCase]:
    """django-tasks-db's tests of its backend class."""
    import django_tasks_db
    import django_tasks_db.admin
    import django_tasks_db.models

    from jobqueue.models import Job

    django_tasks_db.DatabaseBackend = backend()
    django_tasks_db.models.DBTaskResult = Job
    sys.modules["tests"] = types.ModuleType("tests")
    load("tests.tasks", django / "tests/tasks/tasks.py")
    load("tests.tests", db / "tests/tests.py")
    return cases_of("tests.tests")


def load(name: str, path: Path) -> None:
    """Import the file as the module `name`."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module)
    spec.loader.exec_module(module)


def cases_of(module: str) -> list[unittest.TestCase]:
    """The test cases of a module; they may use the database."""
    found = []
    for tests in unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module)):
        for case in tests:
            type(case).databases = {"default"}
            found.append(case)
    return found


def run(cases: list[unittest.TestCase], skips: dict[str, str]) -> dict:
    """Run those that are not to be skipped, on a new database."""
    from django.test.runner import DiscoverRunner

    from jobqueue.gates import rules

    skipped = Counter()
    suite = unittest.TestSuite()
    for case in cases:
        group, name = case.id().split(".")[-2:]
        skip = next((known for known in (group, f"{group}.{name}") if known in skips), None)
        if skip is None:
            suite.addTest(case)
        else:
            skipped[skip] += 1
    runner = DiscoverRunner(verbosity=0, interactive=False)
    runner.setup_test_environment()
    databases = runner.setup_databases()
    # Their tests count the statements of an enqueue, so the rules of queues are read once, before.
    rules.RULES_SECONDS = 3600.0
    rules.rules("default")
    result = unittest.TextTestRunner(stream=io.StringIO(), verbosity=0).run(suite)
    runner.teardown_databases(databases)
    failed = {test.id(): text for test, text in [*result.failures, *result.errors]}
    passed = result.testsRun - len(failed) - len(result.skipped)
    return {"run": result.testsRun, "passed": passed, "failed": failed, "skipped": skipped}


FIND = {
    "django": django_cases,
    "django, running": running_cases,
    "backport": django_cases,
    "backport, running": running_cases,
    "django-tasks-db": db_cases,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
