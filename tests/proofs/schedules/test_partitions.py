"""Old jobs of the archive: a partition that is dropped, and the deletion of as many rows."""

from __future__ import annotations

import time

import pytest

from jobqueue.conf import load
from jobqueue.maintenance.cleaner import CLEANERS
from tests.marks import committed
from tests.proofs.schedules import partitioned, rows
from tests.settings import VENDOR

pytestmark = [
    committed,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no partitions"),
]


@pytest.fixture
def copy(numbers):
    yield partitioned.make_partitioned
    partitioned.drop_partitioned()


def delete_old():
    while CLEANERS["archived_jobs"].run_once(load(), using="default").total():
        pass


def measured(table, work):
    """(seconds of work(), seconds of the longest INSERT beside it, size of the table before and after)."""
    rows.refresh(table)
    before = rows.size(table)
    with partitioned.writer(table) as longest:
        begun = time.monotonic()
        work()
        took = time.monotonic() - begun
    rows.refresh(table)
    return took, longest[0], before, rows.size(table)


def test_a_partition_is_dropped_faster_than_its_rows_are_deleted(copy, settings, full, row):
    """Old jobs of job_archive: DROP PARTITION, and ARCHIVE_RETENTION_SECONDS for as many, beside somebody who adds."""
    old = rows.wanted(1_000_000 if full else 5_000)
    young = old // 10
    settings.JOBQUEUE = {"ARCHIVE_RETENTION_SECONDS": partitioned.BOUND_DAYS * 86_400}
    partitioned.fill(1, old, partitioned.OLD_DAYS)
    partitioned.fill(1 + old, young, partitioned.YOUNG_DAYS)
    copy()
    found = {}
    ways = {
        "the partition is dropped": (partitioned.PARTITIONED, partitioned.drop_old),
        "rows are deleted": (partitioned.PLAIN, delete_old),
    }
    for way, (table, work) in ways.items():
        found[way] = measured(table, work)
        assert partitioned.older_and_younger(table) == (0, young)
    for way, (took, longest, before, after) in found.items():
        row(
            way=way,
            jobs=f"{old:,}",
            seconds=f"{took:.2f}",
            longest_INSERT_beside_it_in_ms=f"{1000 * longest:.0f}",
            MiB_before=rows.in_words(before),
            MiB_after=rows.in_words(after),
        )
    print(found)
    if full:
        dropped, deleted = found.values()
        assert dropped[0] < deleted[0] / 10, found
        # All of the room of the old ones is given back.
        assert dropped[3][0] < dropped[2][0] / 2, found
