"""Settings of the test-suite: JOBQUEUE_TEST_DB picks the database, tests/servers starts the real ones."""

import os
import tempfile
from pathlib import Path

import django
import environ

env = environ.Env()
VENDOR = env("JOBQUEUE_TEST_DB", default="sqlite")
#: a few tests are smaller in make test than in make test-all and make prove
FULL = "JOBQUEUE_TEST_FULL" in os.environ
SECRET_KEY = "only for tests"
USE_TZ = True
# The README sends a mail. Django 6.1 asks for the setting, earlier versions do not read it.
MAILERS = {"default": {}}
TIME_ZONE = "America/New_York"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "jobqueue",
    "tests.app",
]
if django.VERSION < (6, 0):
    # From 6.0 on Django brings Tasks itself.
    INSTALLED_APPS.insert(0, "django_tasks")

if VENDOR == "sqlite":
    _folder = Path(env("JOBQUEUE_TEST_DIR", default=tempfile.gettempdir()))
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": _folder / f"jobqueue-{os.getpid()}.sqlite3",
            "TEST": {"NAME": str(_folder / f"test-jobqueue-{os.getpid()}.sqlite3")},
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 20,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
            },
        }
    }
else:
    DATABASES = {"default": env.db(f"JOBQUEUE_TEST_{VENDOR.upper()}_URL")}
    if VENDOR == "mysql" or VENDOR == "mariadb":
        DATABASES["default"]["TEST"] = {"CHARSET": "utf8mb4"}
        if "JOBQUEUE_TEST_ISOLATION" in os.environ:
            DATABASES["default"].setdefault("OPTIONS", {})["isolation_level"] = env("JOBQUEUE_TEST_ISOLATION")

TASKS = {"default": {"BACKEND": "jobqueue.backends.JobQueueBackend", "QUEUES": []}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "tests.urls"
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STATIC_URL = "/static/"
