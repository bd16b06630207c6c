"""Django settings of the peers that are Django apps; INSTALLED_APPS has only those that are installed."""

import os
from importlib.util import find_spec

import environ

SECRET_KEY = "only for benchmarks"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": environ.Env.db_url_config(os.environ["BENCH_URL"]) | {"NAME": os.environ["BENCH_NAME"]}}
INSTALLED_APPS = ["django.contrib.contenttypes"]
INSTALLED_APPS += [app for app in ("django_tasks", "django_tasks_db", "django_q") if find_spec(app)]
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": []}}
# django-q2, tuned for throughput as its documentation says; a stored result shows that a job is done.
Q_CLUSTER = {
    "name": "bench",
    "orm": "default",
    "workers": int(os.environ.get("BENCH_WORKERS", "1")),
    "bulk": 50,
    "queue_limit": 500,
    "save_limit": 0,
    "timeout": 60,
    "retry": 120,
    "log_level": "WARNING",
}
LOGGING = {"version": 1, "disable_existing_loggers": True, "root": {"level": "ERROR"}}
