"""Settings of the processes of these proofs: their tasks, and whether ended jobs are deleted."""

import os

from tests.proofs.settings import *  # noqa: F403
from tests.proofs.settings import INSTALLED_APPS, JOBQUEUE

INSTALLED_APPS = [*INSTALLED_APPS, "tests.proofs.schedules"]
if os.environ.get("JOBQUEUE_PROVE_KEEP_ALL") == "1":
    JOBQUEUE["RETENTION"] = None
