"""Settings of worker processes that tests start: the test database by name, and short waits."""

import faulthandler
import signal
import sys
from datetime import timedelta

import django
from django.utils import timezone

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, INSTALLED_APPS, env

DATABASES["default"]["NAME"] = env("JOBQUEUE_TEST_NAME")
if pool := env.int("JOBQUEUE_TEST_POOL", default=0):
    # Of each process, and the longest wait for a connection.
    DATABASES["default"].setdefault("OPTIONS", {})["pool"] = {"min_size": 1, "max_size": pool, "timeout": 600}
if offset := env.float("JOBQUEUE_TEST_CLOCK_OFFSET", default=0):
    # The host's clock as this process sees it.
    right = timezone.now
    timezone.now = lambda: right() + timedelta(seconds=offset)
JOBQUEUE = {"BACKOFF_BASE_SECONDS": 0.05, "BACKOFF_FACTOR": 1, "BACKOFF_CAP_SECONDS": 0.1}
if env.bool("JOBQUEUE_TEST_DEFAULT_BACKOFF", default=False):
    JOBQUEUE = {}
# On a busy machine a worker that lives may be silent for long.
JOBQUEUE["WORKER_SILENT_SECONDS"] = env.float("JOBQUEUE_TEST_SILENT_SECONDS", default=60.0)
# {"name of a queue": seconds}
JOBQUEUE["QUEUES"] = {queue: {"LEASE_SECONDS": own} for queue, own in env.json("JOBQUEUE_TEST_LEASES", {}).items()}
JOBQUEUE["QUEUES"] |= env.json("JOBQUEUE_TEST_QUEUES", {})
JOBQUEUE["WAKEUP"] = env("JOBQUEUE_TEST_WAKEUP", default="auto")
JOBQUEUE["OUTBOX"] = env.json("JOBQUEUE_TEST_OUTBOX", None)
JOBQUEUE["ALARMS"] = env.json("JOBQUEUE_TEST_ALARMS", {})
if port := env.int("JOBQUEUE_TEST_SMTP_PORT", default=0):
    if django.VERSION >= (6, 1):
        # There the older settings may not stand beside it.
        _smtp = "django.core.mail.backends.smtp.EmailBackend"
        MAILERS = {"default": {"BACKEND": _smtp, "OPTIONS": {"host": "127.0.0.1", "port": port}}}
    else:
        EMAIL_HOST, EMAIL_PORT = "127.0.0.1", port
JOBQUEUE["SCHEDULES"] = env.json("JOBQUEUE_TEST_SCHEDULES", {})
# Nobody looks at the admin of a worker, and hundreds are started.
INSTALLED_APPS = [app for app in INSTALLED_APPS if app != "django.contrib.admin"]
# The harness asks for the stacks of what hangs with it; a fork of a job keeps it.
if sys.stderr is not None:
    faulthandler.register(signal.SIGUSR2, all_threads=True)
