"""Settings of all processes of a trial."""

from tests.chaos.faults import LEASE_SECONDS
from tests.settings_process import *  # noqa: F403
from tests.settings_process import DATABASES, INSTALLED_APPS, JOBQUEUE, env

INSTALLED_APPS = [app for app in INSTALLED_APPS if app != "tests.app"] + ["tests.chaos"]
DATABASES["default"]["CONN_MAX_AGE"] = env.int("JOBQUEUE_CHAOS_CONN_MAX_AGE", default=0)
JOBQUEUE |= {
    "LEASE_SECONDS": LEASE_SECONDS,
    "BACKOFF_BASE_SECONDS": 0.2,
    "BACKOFF_CAP_SECONDS": 1.0,
    "WORKER_SILENT_SECONDS": 20.0,
    "QUEUES": {
        "limited": {"CONCURRENCY": 3},
        "rated-queue": {"RATE": "15/s"},
        "each": {"ACK_EACH": True},
        "plain": {"STARVE_SECONDS": 5},
    },
    "OUTBOX": {"LEASE_SECONDS": LEASE_SECONDS, "MAX_ATTEMPTS": 1000},
}
