"""Settings of relay processes in proofs: short leases and waits."""

import json
import os

from tests.proofs.settings import *  # noqa: F403
from tests.proofs.settings import JOBQUEUE

JOBQUEUE["OUTBOX"] = {
    "LEASE_SECONDS": 2.0,
    "BATCH_SIZE": 50,
    "MAX_ATTEMPTS": 1000,
    "IN_WORKERS": os.environ.get("JOBQUEUE_TEST_IN_WORKERS") == "1",
    "ROUTES": json.loads(os.environ.get("JOBQUEUE_TEST_ROUTES", "{}")),
}
