"""Django settings for all measures: one database, and otherwise the defaults of Django and of the package."""

import os
from pathlib import Path

import django
import environ

SECRET_KEY = "only for benchmarks"
USE_TZ = True
TIME_ZONE = "UTC"
INSTALLED_APPS = ["jobqueue", "benchmarks"]
if django.VERSION < (6, 0):
    INSTALLED_APPS.insert(0, "django_tasks")
TASKS = {"default": {"BACKEND": "jobqueue.backends.JobQueueBackend", "QUEUES": []}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

if os.environ["BENCH_DB"] == "sqlite":
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(Path(os.environ["BENCH_URL"], os.environ["BENCH_NAME"] + ".sqlite3")),
            # synchronous has SQLite's default, FULL: a commit is on disk.
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": "PRAGMA journal_mode=WAL"},
        }
    }
else:
    DATABASES = {"default": environ.Env.db_url_config(os.environ["BENCH_URL"]) | {"NAME": os.environ["BENCH_NAME"]}}

# Each job of the queue bench_each is acked with a commit of its own.
JOBQUEUE = {
    "QUEUES": {"bench_each": {"ACK_EACH": True}},
    "WAKEUP": os.environ.get("BENCH_WAKEUP", "auto"),
}
