"""Runs blocks of a migration guide where the other queue is installed: python -m tests.docs.beside NAME < blocks.json.

The Python is that of .venv-bench (`sh scripts/bench.sh --peers` makes it), or JOBQUEUE_TEST_BENCH_PYTHON. This
repository is on its path: both queues are there, as during a move. No broker is needed, each runs its tasks at once.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

APPS = {"django-tasks-db": ["django_tasks_db"], "django-q2": ["django_q"], "huey": ["huey.contrib.djhuey"]}
TASKS = {
    "django-tasks-db": {
        "default": {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": ["default", "mail"]},
        "new": {"BACKEND": "jobqueue.backends.JobQueueBackend"},
    }
}
OURS = {"default": {"BACKEND": "jobqueue.backends.JobQueueBackend"}}


MODELS = """
from django.db import models

class Order(models.Model):
    customer = models.CharField(max_length=100)
    paid = models.BooleanField(default=False)
    receipt_sent = models.BooleanField(default=False)
"""


def make_app(folder: str) -> None:
    """A package `orders` with a model and an empty tasks.py."""
    package = Path(folder, "orders")
    package.mkdir()
    for name, text in {"__init__.py": "", "models.py": MODELS, "tasks.py": ""}.items():
        (package / name).write_text(text)
    sys.path.append(folder)


def deploy() -> None:
    """From here on the page's code is that of the next release: what the last one has registered is forgotten."""
    if "celery" in sys.modules:
        sys.modules["celery"].current_app.tasks.pop("orders.tasks.send_receipt")
    if "huey" in sys.modules:
        from huey.contrib.djhuey import HUEY

        HUEY._registry._registry.pop("orders.tasks.send_receipt")


def set_up(name: str) -> None:
    """A project with an app `orders`, this queue, and the other one."""
    import django
    from django.conf import settings

    apps = ["django.contrib.contenttypes", "django.contrib.auth", "orders", "jobqueue", *APPS.get(name, [])]
    settings.configure(
        SECRET_KEY="x",
        USE_TZ=True,
        INSTALLED_APPS=apps if django.VERSION >= (6, 0) else ["django_tasks", *apps],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        TASKS=TASKS.get(name, OURS),
        Q_CLUSTER={"name": "shop", "orm": "default", "sync": True},
        HUEY={"huey_class": "huey.MemoryHuey", "immediate": True},
        LOGGING_CONFIG=None,
    )
    django.setup()
    from django.core.management import call_command
    from django.db import connection
    from django.utils.module_loading import import_string

    call_command("migrate", verbosity=0)
    with connection.schema_editor() as editor:
        editor.create_model(import_string("orders.models.Order"))
    if name == "celery":
        from celery import Celery

        app = Celery("shop")
        app.conf.task_always_eager = app.conf.task_eager_propagates = True
        app.set_default()


def main(name: str) -> None:
    """Run the blocks in their order."""
    set_up(name)
    from django.utils.module_loading import import_string

    shown = {"deploy": deploy, "Order": import_string("orders.models.Order"), "__name__": "page"}
    import_string("orders.tasks.__name__")
    for module, where, text in json.load(sys.stdin):
        space = sys.modules[module].__dict__ if module else shown
        exec(compile(text, where, "exec"), space)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="jobqueue-docs-") as folder:
        make_app(folder)
        main(sys.argv[1])
