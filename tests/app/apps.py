"""The host app of the tests."""

import os
import time

from django.apps import AppConfig


class TestAppConfig(AppConfig):
    """tests.app"""

    name = "tests.app"
    label = "testapp"

    def ready(self):
        """Receivers that take their time or misbehave, for workers that are asked for them."""
        if kind := os.environ.get("JOBQUEUE_TEST_RECEIVERS"):
            from tests.app import receivers

            receivers.connect(kind)
        if seconds := os.environ.get("JOBQUEUE_TEST_SLOW_RECEIVER"):
            from jobqueue.signals import job_dead

            job_dead.connect(lambda **_: time.sleep(float(seconds)), weak=False)
