"""Imported by the fork server before it forks: what is not ours, and needs no settings."""

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

for name in NAMES.split():
    # From Django 6.0 on there is no django_tasks.
    with suppress(ImportError):
        import_module(name)
