"""@handler(batch=...): one call for many rows, one end for each of them."""

import threading
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from django.db import transaction
from django.test import override_settings

from jobqueue import current_job, enqueue, enqueue_many, handler, signals
from jobqueue.exceptions import (
    BatchErrors,
    InvalidType,
    InvalidValue,
    JobCanceled,
    LockNotAcquired,
    NotSupported,
    PayloadError,
    SoftTimeout,
)
from jobqueue.models import Job, JobAttempt
from jobqueue.tasks import registry
from jobqueue.transitions import Lease, ack, ack_many, cancel, claim, fail, reap
from jobqueue.worker.child.outcomes import settle
from jobqueue.worker.run.batch import calls_of
from jobqueue.worker.run.perform import Run, perform
from jobqueue.worker.run.timeouts import Together, Watch
from jobqueue.worker.shared.scoreboard import LeaseSlot
from tests.app import tasks
from tests.factories import expire, job, lease_with, make_due, make_jobs, seconds_from_now, state
from tests.marks import committed
from tests.patience import patient

pytestmark = [committed, pytest.mark.usefixtures("own_registry")]


def run_calls(leases, run=None):
    """Run leases as a worker does; the outcomes of each call, settled."""
    calls = []
    for call in calls_of(leases)[0]:
        outcomes = perform(call, run or Run(LeaseSlot(), Watch(), lambda: False))
        assert not settle(outcomes, SimpleNamespace(finished=0, failed=0, lost=0))
        calls.append(outcomes)
    return calls


def run_due(limit=100):
    """Run what is due in queue q; how many jobs each call had."""
    return [len(call) for call in run_calls(claim("q", limit, worker="w"))]


def states(ids):
    return [state(job_id) for job_id in ids]


@pytest.fixture
def told():
    """told(signal, field): the values of a field in what a signal says from then on, until the test ends."""
    with ExitStack() as at_the_end:

        def start(signal, field):
            found = []

            def hear(**facts):
                found.append(facts[field])

            signal.connect(hear, weak=False)
            at_the_end.callback(signal.disconnect, hear)
            return found

        yield start


def test_one_call_gets_the_leases_of_what_is_due_and_none_means_all_are_done():
    ids, seen = enqueue_many("q", [{"n": n} for n in range(5)]), []

    @handler("q", batch=10)
    def load(leases):
        seen.extend(leases)
        leases.clear()  # its own list: the answers are for the jobs

    assert run_due() == [5]
    assert [(lease.job_id, lease.payload, lease.attempt, lease.fence) for lease in seen] == [
        (job_id, {"n": n}, 1, 1) for n, job_id in enumerate(ids)
    ]
    assert all(isinstance(lease, Lease) and len(lease.token) == 16 and lease.lock_until for lease in seen)
    assert [(state(i), job(i).result, job(i).attempts) for i in ids] == [("DONE", None, 0)] * 5


def test_a_call_gets_no_more_than_its_batch():
    make_jobs(25)
    handler("q", batch=10)(lambda leases: None)
    assert run_due() == [10, 10, 5]


def test_a_batch_of_one_is_a_list_as_well():
    make_jobs(2)
    handler("q", batch=1)(lambda leases: [lease.payload["n"] for lease in leases])
    assert run_due() == [1, 1]
    assert not Job.objects.exclude(status=Job.Status.DONE).exists()


def test_rows_of_plain_sql_are_taken(sql):
    for n in range(3):
        sql(f"""INSERT INTO job_queue (queue, payload) VALUES ('q', '{{"n": {n}}}')""")
    handler("q", batch=10)(lambda leases: [lease.payload["n"] for lease in leases])
    assert run_due() == [3]
    assert list(Job.objects.order_by("id").values_list("result", flat=True)) == [0, 1, 2]


@pytest.mark.parametrize("shape", [list, tuple, dict])
def test_each_job_gets_its_own_result_or_error(shape, settings):
    settings.JOBQUEUE = {"BACKOFF_BASE_SECONDS": 500}
    ids = make_jobs(4)

    @handler("q", batch=10)
    def load(leases):
        answers = [{"id": lease.job_id} for lease in leases]
        answers[2] = ConnectionError("not this one")
        return dict(zip(ids, answers, strict=True)) if shape is dict else shape(answers)

    assert run_due() == [4]
    assert states(ids) == ["DONE", "DONE", "READY", "DONE"]
    assert job(ids[3]).result == {"id": ids[3]}
    failed = job(ids[2])
    assert (failed.attempts, failed.cause) == (1, "dependency")
    assert "not this one" in failed.last_error
    assert 340 < seconds_from_now(failed.run_at) <= 600
    assert [a.job_id for a in JobAttempt.objects.all()] == [ids[2]]


def test_what_the_function_raises_fails_all():
    ids = make_jobs(3)

    @handler("q", batch=10)
    def load(leases):
        raise ValueError("the file is not there")

    assert run_due() == [3]
    assert states(ids) == ["READY"] * 3
    assert {(job(i).attempts, job(i).cause) for i in ids} == {(1, "data")}
    errors = list(JobAttempt.objects.values_list("error", flat=True))
    assert len(errors) == 3
    assert all(text.count("in load") == 1 for text in errors), "one traceback, that of the function"


def test_batch_errors_fail_some_and_the_others_are_done():
    ids = make_jobs(3)

    @handler("q", batch=10)
    def load(leases):
        raise BatchErrors({leases[1].job_id: KeyError("sku")})

    run_due()
    assert states(ids) == ["DONE", "READY", "DONE"]
    assert "KeyError: 'sku'" in job(ids[1]).last_error


def test_batch_errors_are_exceptions_by_job_id():
    for wrong in (None, ["x"], {1: "text"}, {1: ValueError}):
        with pytest.raises(InvalidType, match="by job id"):
            BatchErrors(wrong)


@pytest.mark.parametrize(
    "answer",
    [
        lambda ids: ids[:-1],
        lambda ids: [*ids, 0],
        lambda ids: [],
        lambda ids: len(ids),
        lambda ids: "abc",
        lambda ids: (n for n in ids),
        lambda ids: {"loaded": len(ids)},
        lambda ids: dict.fromkeys([*ids, 0]),
        lambda ids: BatchErrors({0: ValueError()}),
    ],
    ids=["short", "long", "empty", "int", "str", "generator", "summary", "stranger", "failed stranger"],
)
def test_an_answer_that_does_not_fit_ends_all_without_a_retry(answer):
    """Like a result that cannot be stored: the effects have happened."""
    ids = make_jobs(3)

    @handler("q", batch=10)
    def load(leases):
        found = answer(ids)
        if isinstance(found, BatchErrors):
            raise found
        return found

    run_due()
    assert states(ids) == ["FAILED"] * 3
    assert {(job(i).cause, job(i).attempts, job(i).result) for i in ids} == {("format", 1, None)}
    assert "a list with one result for each lease" in job(ids[0]).last_error


@pytest.mark.parametrize("answer", [object(), float("nan"), "x" * 10_000_000], ids=["object", "nan", "huge"])
def test_a_result_that_cannot_be_stored_ends_its_job_alone(answer):
    ids = make_jobs(3)
    handler("q", batch=10)(lambda leases: [1, answer, 3])
    run_due()
    assert states(ids) == ["DONE", "FAILED", "DONE"]


def test_a_job_that_a_dict_leaves_out_is_no_success():
    ids = make_jobs(3)
    handler("q", batch=10)(lambda leases: {ids[0]: None, ids[2]: 2})
    run_due()
    assert states(ids) == ["DONE", "FAILED", "DONE"]
    assert f"without job {ids[1]}" in job(ids[1]).last_error


def test_a_payload_that_cannot_be_read_fails_alone_and_the_function_does_not_see_it():
    ids, seen = make_jobs(3), []
    handler("q", batch=10)(lambda leases: seen.extend(leases))
    leases = claim("q", 10, worker="w")
    run_calls([leases[0], lease_with(leases[1], payload=PayloadError("beyond Python")), leases[2]])
    assert [lease.job_id for lease in seen] == [ids[0], ids[2]]
    assert states(ids) == ["DONE", "READY", "DONE"]
    assert job(ids[1]).cause == "format"


def test_a_job_that_has_failed_runs_alone():
    poison, *others = make_jobs(5)
    calls = []

    @handler("q", batch=10)
    def load(leases):
        calls.append(len(leases))
        if poison in [lease.job_id for lease in leases]:
            raise RuntimeError("one of you")

    run_due()
    assert {job(i).attempts for i in (poison, *others)} == {1}
    for job_id in (poison, *others):
        make_due(job_id)
    fresh = make_jobs(3)
    run_due()
    assert calls == [5, 1, 1, 1, 1, 1, 3]
    assert states([*others, *fresh]) == ["DONE"] * 7
    assert (state(poison), job(poison).attempts) == ("READY", 2)


def test_a_job_with_one_attempt_shares_it_with_nobody():
    enqueue("q", 0, max_attempts=1)
    make_jobs(3)
    handler("q", batch=10)(lambda leases: None)
    assert run_due() == [1, 3]


def test_tasks_in_the_same_queue_run_as_tasks():
    make_jobs(2)
    result = tasks.greet.using(queue_name="q").enqueue("task", 1)
    make_jobs(2)
    handler("q", batch=10)(lambda leases: [current_job()] * len(leases))
    assert sorted(run_due()) == [1, 4]
    assert job(result.id).result == "task 1"


def test_jobs_of_one_ordering_key_never_share_a_call():
    for n in range(6):
        enqueue("q", n, ordering_key=f"k{n % 2}")
    calls = []
    handler("q", batch=10)(lambda leases: calls.append([lease.payload for lease in leases]))
    while run_due():
        pass
    assert calls == [[0, 1], [2, 3], [4, 5]]


def test_a_lease_that_was_lost_meanwhile_harms_no_other():
    ids = make_jobs(3)

    @handler("q", batch=10)
    def load(leases):
        expire(leases[1])
        reap()
        return ["mine"] * 3

    run_due()
    assert states(ids) == ["DONE", "READY", "DONE"]
    assert [job(i).result for i in ids] == ["mine", None, "mine"]
    assert job(ids[1]).attempts == 1


def test_a_job_is_asked_to_cancel_and_the_others_go_on(monkeypatch):
    monkeypatch.setattr("jobqueue.worker.child.outcomes.LOCKED_SECONDS", 500)
    ids = make_jobs(3)

    @handler("q", batch=10)
    def load(leases):
        cancel(ids[0])
        return [JobCanceled("stopped"), None, LockNotAcquired("taken")]

    run_due()
    assert states(ids) == ["CANCELED", "DONE", "READY"]
    assert job(ids[2]).attempts == 0
    assert 140 < seconds_from_now(job(ids[2]).run_at) < 800


def test_a_lock_that_one_job_did_not_get_holds_up_no_other_for_long():
    """The call does not tell whose it was: all are charged once, so that they run alone from then on."""
    ids = make_jobs(2)

    @handler("q", batch=10)
    def load(leases):
        if ids[0] in [lease.job_id for lease in leases]:
            raise LockNotAcquired("taken")

    run_due()
    assert [(state(i), job(i).attempts) for i in ids] == [("READY", 1), ("READY", 1)]
    for job_id in ids:
        make_due(job_id)
    run_due()
    assert [(state(i), job(i).attempts) for i in ids] == [("READY", 1), ("DONE", 1)]
    assert "taken" in job(ids[0]).wait_reason


def test_no_job_is_the_current_one():
    make_jobs(2)
    seen = []
    handler("q", batch=10)(lambda leases: seen.append(current_job()))
    run_due()
    assert seen == [None]


def test_what_the_function_has_acked_is_ended_whatever_follows(told):
    ids = make_jobs(4)
    done, ended = told(signals.job_done, "job_id"), told(signals.attempt_ended, "outcome")
    lost = told(signals.lease_lost, "job_id")

    @handler("q", batch=10)
    def load(leases):
        with transaction.atomic():
            assert ack_many(leases[:2], results=[1, 2]) == []
        ack(leases[2])
        raise OSError("later")

    run_due()
    assert states(ids) == ["DONE", "DONE", "DONE", "READY"]
    assert [job(i).result for i in ids] == [1, 2, None, None]
    assert (sorted(done), sorted(ended), lost) == (ids[:3], ["ok", "ok", "ok", "retry"], [])


def test_an_ack_that_was_rolled_back_is_none():
    ids = make_jobs(2)

    @handler("q", batch=10)
    def load(leases):
        with transaction.atomic():
            ack_many(leases)
            raise OSError("after all")

    run_due()
    assert states(ids) == ["READY", "READY"]
    assert [job(i).attempts for i in ids] == [1, 1]


def test_another_verb_of_the_function_stands():
    ids = make_jobs(2)

    @handler("q", batch=10)
    def load(leases):
        fail(leases[0], error="by hand")

    run_due()
    assert states(ids) == ["READY", "DONE"]
    assert (job(ids[0]).last_error, job(ids[0]).attempts) == ("by hand", 1)


def test_time_limits_are_those_of_the_call(settings):
    ids = make_jobs(3)
    settings.JOBQUEUE = {**getattr(settings, "JOBQUEUE", {}), "TIMEOUT_SECONDS": 0.1, "HARD_TIMEOUT_SECONDS": 60}
    slots, seen, ended = [LeaseSlot() for _ in ids], [], threading.Event()
    watch, inside = Watch(), threading.Event()

    @handler("q", batch=10)
    def load(leases):
        seen.extend(slot.hard_until for slot in slots)
        inside.set()
        while not ended.wait(0.005):
            pass

    def enforce():
        inside.wait(patient())
        while not ended.wait(0.02):
            watch.enforce()

    thread = threading.Thread(target=enforce)
    thread.start()
    try:
        [outcomes] = run_calls(claim("q", 10, worker="w"), Run(Together(slots), watch, lambda: False))
    finally:
        ended.set()
        thread.join()
    assert {type(outcome.error) for outcome in outcomes} == {SoftTimeout}
    assert {job(i).cause for i in ids} == {"timeout"}
    assert len(seen) == 3
    assert min(seen) > 0
    assert {slot.hard_until for slot in slots} == {0.0}


@override_settings(JOBQUEUE={"QUEUES": {"q": {"ACK_EACH": True}}})
def test_a_queue_may_have_each_end_committed_by_itself():
    make_jobs(2)
    handler("q", batch=10)(lambda leases: None)
    [outcomes] = run_calls(claim("q", 10, worker="w"))
    assert [outcome.ack_each for outcome in outcomes] == [True, True]


@pytest.mark.parametrize("batch", [0, -1, 1001, True, 2.0, "10"])
def test_a_batch_is_a_number_from_1_to_1000(batch):
    with pytest.raises((InvalidValue, InvalidType), match="batch"):
        handler("refused", batch=batch)


def test_functions_whose_end_is_not_that_of_a_call_are_refused():
    async def coroutine(leases):
        return None

    async def coroutine_generator(leases):
        yield None

    def generator(leases):
        yield None

    for func, words in ((coroutine, "async_to_sync"), (coroutine_generator, "async_to_sync"), (generator, "list")):
        with pytest.raises(NotSupported, match=words):
            handler("refused", batch=2)(func)
    assert registry.find_handler("refused") is None
