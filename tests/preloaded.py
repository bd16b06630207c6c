"""Imported by the fork server before it forks: what keeps nothing of the settings and of the process at import.

Models need settings to be defined, those of their apps and the engine of the database, which are the same in all
processes that tests start. They are defined here with no others, and what Django has learnt from these is forgotten:
each process reads its own settings, loads its apps, and lets them be ready.
"""

import os
from contextlib import suppress
from importlib import import_module

from django.apps import AppConfig, apps
from django.conf import empty, settings
from django.db import connections

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
APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions", "jobqueue"]
#: of ours: they import nearly all that a command needs, which is half of the start of a worker
OURS = "checks lockstats.recorder management.commands.runworker management.commands.relay_outbox"


def define_models():
    """Import the modules of the apps. None of them is told that it is ready."""
    settings.configure(
        DATABASES={"default": {"ENGINE": f"django.db.backends.{ENGINE}"}}, INSTALLED_APPS=APPS, USE_TZ=True
    )
    for config in map(AppConfig.create, APPS):
        config.apps = apps
        apps.app_configs[config.label] = config
    apps.apps_ready = True
    for config in apps.get_app_configs():
        config.import_models()
    apps.models_ready = True


def forget_settings():
    """Be a process that has not read its settings, nor loaded an app."""
    settings._wrapped = empty
    apps.app_configs.clear()
    apps.clear_cache()
    apps.apps_ready = apps.models_ready = False
    # To know how long a name may be, a model asks a connection, which is not opened.
    connections.__dict__.pop("settings", None)
    connections.__init__()


for name in NAMES.split():
    # From Django 6.0 on there is no django_tasks.
    with suppress(ImportError):
        import_module(name)
# What cannot be imported, the process that needs it fails with.
try:
    define_models()
    for name in OURS.split():
        import_module(f"jobqueue.{name}")
finally:
    forget_settings()
