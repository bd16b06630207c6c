"""Settings of the workers of these proofs: their tasks."""

from tests.proofs.settings import *  # noqa: F403
from tests.proofs.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.proofs.flow"]
