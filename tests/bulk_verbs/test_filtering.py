"""Which jobs the filters of the list mean, and what is refused."""

from datetime import UTC, datetime
from itertools import permutations

import pytest

from jobqueue.bulk_verbs import matching
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models import Job, JobTag
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import HELD_GATE
from jobqueue.runs import walking
from jobqueue.runs.bulk_steps import change
from jobqueue.runs.job_filter import FILTERS, check_filters
from jobqueue.runs.verbs import check_verb, still
from jobqueue.runs.walking import next_ids, preview
from tests.factories import claim_one, expire, job, make_in_state, make_job, now, set_columns
from tests.marks import finding

pytestmark = pytest.mark.django_db


def found(**filters):
    return sorted(matching(filters, "default").values_list("pk", flat=True))


def test_each_filter_that_jobs_list_compares_is_a_column():
    assert {name for name, one in FILTERS.items() if one.option} <= {field.name for field in Job._meta.concrete_fields}


def test_each_state_has_its_jobs():
    ids = {
        "done": make_in_state("DONE"),
        "failed": make_in_state("FAILED"),
        "canceled": make_in_state("CANCELED"),
        "expired": make_in_state("PROCESSING"),
    }
    expire(ids["expired"])
    ids |= {"ready": make_job(), "scheduled": make_job(run_at=UtcNowPlus(600))}
    assert {state: found(state=state) for state in ids} == {state: [job_id] for state, job_id in ids.items()}
    assert found(state="running") == [ids["expired"]]
    assert found() == sorted(ids.values())


@finding("O-M12")
def test_waiting_jobs_are_ready_scheduled_or_held_whatever_the_verb():
    node, later_node = make_job(gate=PARENTS_GATE), make_job(gate=PARENTS_GATE, run_at=UtcNowPlus(600))
    held, later_held = make_job(gate=HELD_GATE), make_job(gate=HELD_GATE, run_at=UtcNowPlus(600))
    due, limited, later = make_job(), make_job(gate=FLOW_GATE), make_job(run_at=UtcNowPlus(600))
    assert found(state="ready") == [due, limited]
    assert found(state="scheduled") == [node, later_node, later]
    assert found(state="held") == [held, later_held]
    for state in ("ready", "scheduled", "held"):
        assert [job.pk for job in preview("cancel", {"state": state}, first=9, using="default").first] == found(
            state=state
        )


@finding("O-M12")
@pytest.mark.parametrize("queue", [{}, {"queue": "q"}])
def test_a_retry_of_scheduled_jobs_leaves_nodes_that_wait_for_their_parents_alone(queue):
    node, later = make_job(gate=PARENTS_GATE), make_job(run_at=UtcNowPlus(600))
    later_node = make_job(gate=PARENTS_GATE, run_at=UtcNowPlus(600))
    wanted = {"state": "scheduled", **queue}
    seen = preview("retry", wanted, first=9, using="default")
    assert (seen.matched, [one.pk for one in seen.first]) == (2, [later, later_node])
    assert next_ids("retry", wanted, after_id=0, until_id=later_node, most=9, using="default")[0] == [later, later_node]
    assert change("retry", [node, later], still("retry", wanted, now()), using="default").changed == 1
    assert (job(later).run_at <= now(), job(node).gate) == (True, PARENTS_GATE)


def test_a_job_whose_next_attempt_is_not_due_is_retrying_and_a_retry_runs_it_now():
    later, due = make_job(run_at=UtcNowPlus(600)), make_job()
    again = make_job(run_at=UtcNowPlus(600))
    for one in (due, again):
        set_columns(one, attempts=1)
    assert found(state="retrying") == [again]
    assert found(state="scheduled") == [later, again]
    assert change("retry", [later, again], still("retry", {"state": "retrying"}, now()), using="default").changed == 1
    assert job(again).run_at <= now() < job(later).run_at


def test_a_job_whose_lease_is_good_runs_and_has_not_expired():
    running = make_in_state("PROCESSING")
    assert found(state="running") == [running]
    assert found(state="expired") == []


def test_all_filters_must_match():
    mine, other, untagged = make_job("a"), make_job("b"), make_job("a")
    tagged = make_job("a")
    JobTag.objects.create(job_id=tagged, tag="blue")
    set_columns(mine, task="app.tasks.pay")
    assert found(queue="a") == [mine, untagged, tagged]
    assert found(queue="a", task="app.tasks.pay") == [mine]
    assert found(tag="blue") == [tagged]
    assert found(queue="b", tag="blue") == []
    assert found(queue="b") == [other]


def test_failures_and_workers_are_found():
    failed = make_in_state("FAILED")
    kind, cause = job(failed).fingerprint, job(failed).cause
    make_job()
    lease = claim_one(worker="web-1:2:x")
    assert found(fingerprint=kind) == [failed]
    assert found(cause=cause) == [failed]
    assert found(worker="web-1:2:x") == [lease.job_id]


@pytest.mark.parametrize(
    "filters",
    [
        {"payload__contains": "x"}, {"status": "3"}, {"state": "all"}, {"state": ""}, {"queue": "\x00"}, {"queue": ""},
        {"cause": "x"}, {"fingerprint": "' OR 1=1"}, {"worker": ""}, {"tag": ""}, {"fingerprint": "0" * 16 + ","},
        {"fingerprint": ",".join(["0" * 16] * 101)}, {"job_ids": ""}, {"job_ids": "1,x"}, {"job_ids": "1,,2"},
        {"job_ids": "1" * 19}, {"job_ids": ",".join(["1"] * 1001)}, {"from_id": "-1"}, {"from_id": "٣"}, {"q": "x"},
        {"age": "1h"}, {"error": "ValueError"},
    ],
)  # fmt: skip
def test_unknown_names_and_impossible_values_are_refused(filters):
    with pytest.raises((InvalidValue, InvalidType)):
        matching(filters, "default")


@pytest.mark.parametrize(("name", "value", "most"), [("fingerprint", "0" * 16, 100), ("job_ids", "1", 1000)])
def test_as_many_values_as_are_allowed_are_taken(name, value, most):
    filters = {name: ",".join([value] * most)}
    assert check_filters(filters) == filters


def test_a_verb_that_changes_no_job_of_the_state_is_refused():
    with pytest.raises(InvalidValue, match="changes no job"):
        check_verb("release", {"state": "failed"})
    with pytest.raises(InvalidValue, match="verb must be one of"):
        check_verb("drop", {})


def test_a_preview_counts_what_the_verb_can_change_and_shows_the_oldest(monkeypatch):
    ids = [make_in_state("FAILED") for _ in range(3)]
    make_job()
    seen = preview("retry", {"queue": "q"}, first=2, using="default")
    assert (seen.matched, seen.is_capped, [one.pk for one in seen.first]) == (3, False, ids[:2])
    monkeypatch.setattr("jobqueue.runs.walking.MATCHED_MAX", 2)
    capped = preview("retry", {"queue": "q"}, first=0, using="default")
    assert (capped.matched, capped.is_capped) == (2, True)


def test_a_preview_finds_the_jobs_that_expired_among_those_that_were_canceled():
    job_id, _ = make_in_state("CANCELED"), make_in_state("CANCELED")
    set_columns(job_id, cause="expired")
    seen = preview("retry", {"cause": "expired"}, first=2, using="default")
    assert (seen.matched, [one.pk for one in seen.first]) == (1, [job_id])


def test_a_preview_shows_jobs_behind_many_that_the_verb_does_not_change(monkeypatch):
    monkeypatch.setattr("jobqueue.runs.walking.WINDOW", 1)
    monkeypatch.setattr("jobqueue.runs.walking.EMPTY_MAX", 1)
    for _ in range(3):
        make_in_state("DONE")
    failed = make_in_state("FAILED")
    assert [one.pk for one in preview("retry", {}, first=2, using="default").first] == [failed]


def test_several_fingerprints_jobs_by_id_and_a_first_job_are_found():
    ids = [make_in_state("FAILED") for _ in range(3)]
    kinds = [f"{number:016x}" for number in range(3)]
    for job_id, kind in zip(ids, kinds, strict=True):
        set_columns(job_id, fingerprint=kind)
    assert found(fingerprint=f"{kinds[0]},{kinds[2]}") == [ids[0], ids[2]]
    assert found(job_ids=f"{ids[2]},{ids[0]},{ids[2] + 99}") == [ids[0], ids[2]]
    assert found(from_id=str(ids[1])) == ids[1:]
    assert found(from_id=str(ids[1]), job_ids=f"{ids[0]},{ids[1]}") == [ids[1]]


def test_jobs_by_id_are_walked_without_looking_at_others(django_assert_num_queries):
    ids = [make_in_state("FAILED") for _ in range(3)]
    wanted = {"job_ids": ",".join(map(str, ids))}
    far = ids[-1] + 10**12
    with django_assert_num_queries(1):
        assert next_ids("retry", wanted, after_id=0, until_id=far, most=2, using="default") == (ids[:2], ids[1])
    with django_assert_num_queries(1):
        assert next_ids("retry", wanted, after_id=ids[1], until_id=far, most=2, using="default") == ([ids[2]], far)


def test_a_walk_begins_at_the_first_job(monkeypatch):
    monkeypatch.setattr(walking, "WINDOW", 1)
    ids = [make_in_state("FAILED") for _ in range(3)]
    wanted = {"from_id": str(ids[2])}
    assert next_ids("retry", wanted, after_id=0, until_id=ids[2], most=5, using="default") == ([ids[2]], ids[2])


def test_the_condition_of_a_locked_row_is_the_same_statement_whatever_the_order_of_the_filters():
    filters = {"queue": "mail", "state": "failed", "task": "shop.tasks.send", "cause": "data", "worker": "w"}
    found = {
        str(still("retry", dict(order), datetime(2026, 1, 1, tzinfo=UTC))) for order in permutations(filters.items())
    }
    assert len(found) == 1
