"""The host app of the tests."""

import os
import time

from django.apps import AppConfig


class TestAppConfig(AppConfig):
    """tests.app"""

    name = "tests.app"
    label = "testapp"

    def ready(self):
        """A receiver that takes its time, for workers that are asked for one."""
        if seconds := os.environ.get("JOBQUEUE_TEST_SLOW_RECEIVER"):
            from jobqueue.signals import job_dead

            job_dead.connect(lambda **_: time.sleep(float(seconds)), weak=False)
