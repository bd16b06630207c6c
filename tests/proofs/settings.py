"""Settings of worker processes in tests: the test database of the parent, short waits."""

import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

DATABASES["default"]["NAME"] = os.environ["JOBQUEUE_TEST_NAME"]
JOBQUEUE = {"BACKOFF_BASE_SECONDS": 0.05, "BACKOFF_CAP_SECONDS": 0.2}
if "JOBQUEUE_TEST_DEFAULT_BACKOFF" in os.environ:
    JOBQUEUE = {}
# Proofs in which leases run out have shorter ones, with --lease.
JOBQUEUE |= {"LEASE_SECONDS": 60.0, "HEARTBEAT_SECONDS": 1.0}
JOBQUEUE["SCHEDULES"] = json.loads(os.environ.get("JOBQUEUE_TEST_SCHEDULES", "{}"))
JOBQUEUE["QUEUES"] = {"slow": {"LEASE_SECONDS": 600.0}}

if "JOBQUEUE_TEST_CLOCK_OFFSET" in os.environ:
    # The host's clock as this process sees it. The queue must not look at it for leases and due times.
    import time
    from datetime import timedelta

    from django.utils import timezone

    _offset = float(os.environ["JOBQUEUE_TEST_CLOCK_OFFSET"])
    _time, _now = time.time, timezone.now
    time.time = lambda: _time() + _offset
    timezone.now = lambda: _now() + timedelta(seconds=_offset)
