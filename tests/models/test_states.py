"""The one definition of ready, scheduled and held: as a condition, in Python, and in the counts by index."""

import pytest

from jobqueue.db.clock import UtcNowPlus
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models import Job
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import HELD_GATE
from jobqueue.models.states import STATES, WAITING, condition_of, state_of
from jobqueue.ordering import KEY_GATE
from jobqueue.stats.live import READY_GATES, STATE_OF_GATE, count_live
from tests.factories import expire, make_in_state, make_job, now, set_columns
from tests.marks import finding

pytestmark = [pytest.mark.django_db, finding("O-M12")]
LATER = 600
#: (gate, seconds to run_at) -> state
WAITS = {
    (0, -1): "ready", (KEY_GATE, -1): "ready", (FLOW_GATE, -1): "ready",
    (0, LATER): "scheduled", (KEY_GATE, LATER): "scheduled", (FLOW_GATE, LATER): "scheduled",
    (PARENTS_GATE, -1): "scheduled", (PARENTS_GATE, LATER): "scheduled",
    (HELD_GATE, -1): "held", (HELD_GATE, LATER): "held",
}  # fmt: skip


def of_each_kind():
    """Jobs of all states, and the state of each."""
    found = {make_job(gate=gate, run_at=UtcNowPlus(seconds)): state for (gate, seconds), state in WAITS.items()}
    found |= {make_in_state(name, "other"): name.lower() for name in ("DONE", "FAILED", "CANCELED")}
    found[make_in_state("PROCESSING", "other")] = "running"
    expired = make_in_state("PROCESSING", "other")
    expire(expired)
    retrying = make_job(run_at=UtcNowPlus(LATER))
    set_columns(retrying, attempts=1)
    return found | {expired: "expired", retrying: "retrying"}


#: state -> the one that some of its jobs have, too
PARTS = {"running": "expired", "scheduled": "retrying"}


def test_each_job_meets_the_condition_of_its_state_and_of_no_other():
    wanted = of_each_kind()
    for state in STATES:
        found = {*Job.objects.filter(condition_of(state)).values_list("pk", flat=True)}
        names = {state, PARTS.get(state)}
        assert found == {job_id for job_id, name in wanted.items() if name in names}, state


def test_the_state_of_a_row_is_the_state_whose_condition_it_meets():
    wanted = of_each_kind()
    # Nobody reads "retrying" on one job: it is scheduled.
    states = {job_id: state.replace("retrying", "scheduled") for job_id, state in wanted.items()}
    assert {job.pk: state_of(job, now()) for job in Job.objects.all()} == states


def test_the_counts_by_index_are_those_of_the_conditions():
    of_each_kind()
    found = count_live(["q", "other"], "default", lambda: None)
    for state in (*WAITING, "running", "failed"):
        counted = sum(getattr(one, state) for one in found.values())
        assert counted == Job.objects.filter(condition_of(state)).count(), state


def test_each_gate_has_its_states():
    assert sorted({*READY_GATES, *STATE_OF_GATE}) == sorted({gate for gate, _ in WAITS})
    assert {STATES[state].status for state in WAITING} == {Job.Status.READY}
