"""All promises hold while processes are killed, frozen and cut off at once: one seed of `make chaos`, in short."""

from argparse import Namespace

import pytest

from tests.chaos import run
from tests.settings import VENDOR

SEED = "1"


# The short run has the process tests on MySQL only.
@pytest.mark.parametrize("database", sorted({VENDOR, "sqlite"}))
def test_the_promises_hold_under_all_faults_at_once(database):
    # Other tests use the server at the same time.
    options = Namespace(db=database, seconds=20.0, no_outages=True)
    result = run.attempt(options, SEED)
    assert result["violations"] == [], f"{run.again(options, SEED)}; evidence: {result['folder']}"
    assert result["faults"] > 30
