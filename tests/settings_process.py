"""Settings of worker processes that tests start: the test database by name, and short waits."""

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, INSTALLED_APPS, env

DATABASES["default"]["NAME"] = env("JOBQUEUE_TEST_NAME")
JOBQUEUE = {"BACKOFF_BASE_SECONDS": 0.05, "BACKOFF_FACTOR": 1, "BACKOFF_CAP_SECONDS": 0.1, "WORKER_SILENT_SECONDS": 5}
JOBQUEUE["DOORBELL"] = env("JOBQUEUE_TEST_DOORBELL", default="auto")
# Nobody looks at the admin of a worker, and hundreds are started.
INSTALLED_APPS = [app for app in INSTALLED_APPS if app != "django.contrib.admin"]
