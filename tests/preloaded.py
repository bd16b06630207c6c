"""Imported by the fork server before it forks: what needs no settings, and keeps nothing of the process at import."""

import os
from contextlib import suppress
from importlib import import_module

ENGINES = {"sqlite": "sqlite3", "mysql": "mysql", "mariadb": "mysql", "postgres": "postgresql"}
ENGINE = ENGINES[os.environ.get("JOBQUEUE_TEST_DB", "sqlite")]
NAMES = f"""
    asyncio concurrent.futures ctypes faulthandler http.server importlib.resources mmap sqlite3 statistics
    urllib.request environ django_stubs_ext django_tasks.checks django_tasks.backends.base
    django.contrib.admin django.contrib.auth.password_validation django.contrib.contenttypes.apps
    django.contrib.messages.views django.contrib.sessions.backends.base django.contrib.syndication.views
    django.core.management.commands.migrate django.db.backends.{ENGINE}.base
    django.db.migrations.executor django.db.models django.middleware.cache django.template.loader_tags
    django.views.debug django.views.i18n
"""
#: of ours: they define classes and functions only, and take a quarter of the start of a worker
OURS = """
    backends cli.arguments cli.process compat conf db db.fields db.prepared db.retry db.statements db.time_limit
    db.querysets failures inspect.footprint log_format payload producer.enqueueing signals tasks.registry transactions
    wakeup worker.run.timeouts worker.shared.cleanup worker.shared.scoreboard
"""

for name in NAMES.split():
    # From Django 6.0 on there is no django_tasks.
    with suppress(ImportError):
        import_module(name)
for name in OURS.split():
    import_module(f"jobqueue.{name}")
