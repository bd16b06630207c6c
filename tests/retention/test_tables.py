"""Each table of the product is kept small by something, or is small by itself."""

from django.apps import apps

from jobqueue.maintenance.cleaner import CLEANERS
from jobqueue.models import (
    BreakerState,
    CounterShard,
    FailureNote,
    FlowRule,
    Gate,
    GateSlot,
    GateWait,
    GroupMember,
    GroupParent,
    Job,
    JobAttempt,
    JobTag,
    LaneEntry,
    LockRow,
    MutexRow,
    ResultExpiry,
)

#: by what, other than the cleaners
SWEPT = {
    Job: "retention.deletion",
    JobAttempt: "retention.deletion",
    JobTag: "retention.deletion",
    ResultExpiry: "retention.windows",
    GroupMember: "maintenance.cleaner",
    GroupParent: "maintenance.cleaner",
    LaneEntry: "maintenance.sweeps",
    GateWait: "maintenance.gate_sweep",
    GateSlot: "maintenance.gate_sweep",
    Gate: "maintenance.gate_sweep",
    LockRow: "maintenance.cleaner",
    MutexRow: "maintenance.cleaner",
}
#: rows that no run of jobs adds to
BOUNDED = {
    BreakerState: "one row for each name of a dependency",
    CounterShard: "as many rows for a counter as its setting says, and two for deleted locks",
    FailureNote: "written by people",
    FlowRule: "written by people, and a row for each queue with CONCURRENCY (least, most)",
}


def test_each_table_is_pruned_or_bounded():
    cleaned = {cleaner.model for cleaner in CLEANERS.values()}
    kinds = [cleaned, {*SWEPT}, {*BOUNDED}]
    known = set().union(*kinds)
    assert len(known) == sum(map(len, kinds)), "a table is in two of the lists"
    assert {*apps.get_app_config("jobqueue").get_models()} == known
