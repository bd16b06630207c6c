"""The app of these proofs, in whose workers nobody repairs groups if JOBQUEUE_PROVE_NO_GROUP_SWEEP is 1."""

import os
from collections import Counter

from django.apps import AppConfig


class SchedulesConfig(AppConfig):
    """What our own verbs leave undone stays so, and is seen."""

    name = "tests.proofs.schedules"

    def ready(self):
        """Before the worker has any other process."""
        if os.environ.get("JOBQUEUE_PROVE_NO_GROUP_SWEEP") == "1":
            from jobqueue.maintenance import sweeps

            sweeps.GroupSweep.run_once = lambda self, settings, using: Counter()
