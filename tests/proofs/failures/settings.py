"""Settings of the workers of these proofs: their tasks, and a dependency."""

from tests.proofs.settings import *  # noqa: F403
from tests.proofs.settings import INSTALLED_APPS, JOBQUEUE

INSTALLED_APPS = [*INSTALLED_APPS, "tests.proofs.failures"]
# The budget of retries is what is proved: the breaker would let almost no job of a service run that is down.
JOBQUEUE["DEPENDENCIES"] = {"shop": {"RETRY_SHARE": 0.2, "FAILURES": 10**9}}
