"""The page about retries has the figures of the simulation."""

import pytest

from tests.docs.markdown import ROOT
from tests.worker.retry_service import burst, outage

PAGE = ROOT / "docs" / "explanation" / "retries.md"


@pytest.mark.parametrize("fixed_seconds", [None, 30])
def test_the_table_of_an_outage_has_the_figures_of_the_simulation(fixed_seconds):
    assert outage(budget=True, fixed_seconds=fixed_seconds)[0] in PAGE.read_text().splitlines()


@pytest.mark.parametrize("budget", [False, True])
@pytest.mark.parametrize(("jobs", "seconds"), [(1000, 300), (3000, 120)])
def test_the_table_of_bursts_has_the_figures_of_the_simulation(jobs, seconds, budget):
    """The other rows take too long: `python -m tests.worker.retry_figures` prints all of them."""
    assert burst(jobs, seconds, budget=budget)[0] in PAGE.read_text().splitlines()
