"""JOBQUEUE["MIDDLEWARE"]: classes around each enqueue and each run, and the context that they store with a job."""

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from jobqueue import checks, current_job, enqueue, enqueue_many, group, handler, schedule, task, workflow
from jobqueue.exceptions import Discard, InvalidType, InvalidValue, PayloadError, PayloadTooLarge, SoftTimeout
from jobqueue.middleware.chain import CONTEXT_BYTES_MAX
from jobqueue.models import Job
from jobqueue.testing import drain, fire, run_task
from jobqueue.transitions import retry
from jobqueue.worker.run.perform import Run, perform
from jobqueue.worker.run.timeouts import Watch
from jobqueue.worker.shared.scoreboard import LeaseSlot
from tests.factories import claim_one, job, run_lease, state
from tests.marks import committed
from tests.middleware import classes
from tests.middleware.classes import Lasts, Raises, Sets, seen, tenant
from tests.patience import wait_until

pytestmark = [committed, pytest.mark.usefixtures("own_registry")]


def middleware(*names):
    return override_settings(JOBQUEUE={"MIDDLEWARE": [f"tests.middleware.classes.{name}" for name in names]})


@pytest.fixture(autouse=True)
def nothing_seen():
    seen.clear()
    yield
    Sets.context = None


@pytest.fixture
def acme():
    """The tenant of this test."""
    mark = tenant.set("acme")
    yield "acme"
    tenant.reset(mark)


@task(queue_name="q")
def whose(*args, **kwargs):
    seen.append((tenant.get(), dict(current_job().context)))
    return tenant.get()


@task(queue_name="q")
async def awhose():
    seen.append((tenant.get(), dict(current_job().context)))
    return tenant.get()


@task(queue_name="q", dedupe_key="one")
def once_only():
    pass


@task(queue_name="q", dedupe_key="one", unique="waiting", on_conflict="replace")
def newest_only():
    pass


def contexts():
    """The contexts of all jobs, by their ids."""
    return [(found or {}).get("context") for found in Job.objects.order_by("id").values_list("options", flat=True)]


@middleware("Tenant")
def test_a_run_reads_what_the_enqueue_stored(acme):
    result = whose.enqueue()
    tenant.set("other")
    drain()
    assert seen == [("acme", {"tenant": "acme"})]
    result.refresh()
    assert result.return_value == "acme"
    assert tenant.get() == "other", "the run's tenant ended with it"


@middleware("Tenant")
def test_a_coroutine_runs_inside_arun(acme):
    awhose.enqueue()
    tenant.set("other")
    drain()
    assert seen == [("acme", {"tenant": "acme"})]


@middleware("Tenant")
def test_each_way_to_add_a_job_stores_a_context(acme):
    whose.enqueue(1)
    whose.enqueue_many([(1,), (2,)])
    enqueue("q", {"n": 1})
    enqueue_many("q", [1, 2])
    once_only.enqueue()
    async_to_sync(whose.aenqueue)()
    async_to_sync(whose.aenqueue_many)([(1,)])
    assert contexts() == [{"tenant": "acme"}] * 9


@middleware("Tenant")
def test_members_and_callbacks_of_a_group_have_the_context_of_its_caller(acme):
    with group("mail", on_done=whose) as made:
        made.add(whose, 1)
    steps = workflow("steps")
    steps.add(whose, after=[steps.add(whose)])
    steps.start()
    tenant.set("other")
    drain()
    assert seen == [("acme", {"tenant": "acme"})] * 4


@middleware("Outer", "Inner")
def test_the_first_class_is_the_outermost():
    job_id = int(whose.enqueue(1, b=2).id)
    at_enqueue = [(kind, "enqueue", whose.module_path, "q", [1], {"b": 2}) for kind in ("outer", "inner")]
    assert seen == [*at_enqueue, ("inner", "enqueued"), ("outer", "enqueued")]
    seen.clear()
    drain()
    ran = ("none", {})
    assert seen == [("outer", "run", job_id), ("inner", "run", job_id), ran, ("inner", "ran"), ("outer", "ran")]


@middleware("Outer")
def test_a_job_of_a_handler_has_its_payload_as_the_only_argument():
    handler(queue="q")(lambda payload: seen.append(payload))
    enqueue("q", {"n": 1})
    assert seen[0] == ("outer", "enqueue", None, "q", [{"n": 1}], {})
    seen.clear()
    drain()
    assert [each if isinstance(each, dict) else each[1] for each in seen] == ["run", {"n": 1}, "ran"]


def test_without_middleware_a_job_has_no_context():
    whose.enqueue()
    assert contexts() == [None]
    drain()
    assert seen == [("none", {})]


def test_an_enqueue_sends_the_same_statements_with_middleware(acme):
    def statements():
        with CaptureQueriesContext(connection) as sent:
            whose.enqueue()
        # Which enqueue sends a wake-up depends on the time since the last one.
        return [sql.split("(")[0].rstrip("0123456789") for each in sent if "pg_notify" not in (sql := each["sql"])]

    statements()
    without = statements()
    with middleware("Tenant"):
        assert statements() == without


@middleware("Refuses")
def test_an_exception_refuses_the_job_and_leaves_the_transaction_usable():
    with transaction.atomic():
        for add in (whose.enqueue, lambda: whose.enqueue_many([(), ()]), lambda: enqueue("q", 1)):
            with pytest.raises(ValueError, match="no tenant"):
                add()
        mark = tenant.set("acme")
        whose.enqueue()
        tenant.reset(mark)
    assert Job.objects.count() == 1


@pytest.mark.parametrize(("name", "words"), [("Forgets", "without a call of next"), ("Repeats", "next.. twice")])
def test_a_class_that_does_not_call_next_once_refuses_the_job(name, words):
    with middleware(name), pytest.raises(InvalidValue, match=words):
        whose.enqueue()
    assert not Job.objects.exists()


@middleware("Sets")
@pytest.mark.parametrize(
    ("context", "kind"),
    [
        ({"a": "x" * CONTEXT_BYTES_MAX}, PayloadTooLarge),
        ({"a": "ä" * (CONTEXT_BYTES_MAX // 2)}, PayloadTooLarge),
        ({"a": object()}, PayloadError),
        ({"a": float("nan")}, PayloadError),
        ({1: "a"}, PayloadError),
        ([], InvalidType),
        (None, InvalidType),
    ],
)
def test_a_context_that_cannot_be_stored_is_refused(context, kind):
    Sets.context = context
    with pytest.raises(kind, match="Nothing was written"):
        whose.enqueue()
    assert not Job.objects.exists()


@middleware("Sets")
@pytest.mark.parametrize("context", [{}, {"a": "x" * (CONTEXT_BYTES_MAX - 8)}, {"a": {"b": [1, None, "ä", 2**63]}}])
def test_any_other_dict_is_stored_unchanged(context):
    Sets.context = context
    whose.enqueue()
    drain()
    assert seen == [("none", context)]


@middleware("Tenant")
def test_the_job_that_holds_a_dedupe_key_keeps_its_context(acme):
    once_only.enqueue()
    tenant.set("other")
    once_only.enqueue()
    assert contexts() == [{"tenant": "acme"}]


@middleware("Tenant")
def test_a_job_that_replaces_another_brings_its_own_context(acme):
    newest_only.enqueue()
    tenant.set("other")
    newest_only.enqueue()
    assert contexts() == [{"tenant": "other"}]


@middleware("Raises")
def test_a_retry_has_the_context_of_the_enqueue(acme):
    with middleware("Tenant", "Raises"):
        job_id = int(whose.using(max_attempts=1).enqueue().id)
        Raises.error = ValueError("broken")
        drain()
    assert state(job_id) == "FAILED"
    assert "broken" in job(job_id).last_error
    retry(job_id)
    with middleware("Tenant"):
        drain()
    assert seen == [("acme", {"tenant": "acme"})]


def test_what_run_returns_is_the_result():
    with middleware("Doubles"):
        result = whose.enqueue()
        drain()
    result.refresh()
    assert result.return_value == "nonenone"


@middleware("Raises")
def test_run_may_end_the_job_as_a_task_may():
    Raises.error = Discard("the tenant is gone")
    job_id = int(whose.enqueue().id)
    assert drain().ran == 1
    assert state(job_id) == "CANCELED"


@middleware("ForgetsRun")
def test_a_job_whose_middleware_does_not_call_next_is_not_done():
    job_id = int(whose.using(max_attempts=1).enqueue().id)
    drain()
    assert state(job_id) == "FAILED"
    assert "without a call of next" in job(job_id).last_error
    assert not seen


@middleware("OnlyRun")
def test_a_coroutine_does_not_run_without_arun():
    job_id = int(awhose.using(max_attempts=1).enqueue().id)
    drain()
    assert state(job_id) == "FAILED"
    assert "has run() but no arun()" in job(job_id).last_error
    assert not seen


@middleware("Refuses")
def test_the_tick_of_a_schedule_runs_no_code_of_the_project_in_the_worker():
    schedule(every="1h", name="hourly")(whose)
    fire("hourly")
    assert contexts() == [None]


def test_a_context_that_plain_sql_has_written_wrongly_is_empty():
    whose.enqueue()
    Job.objects.update(options={"context": 5})
    drain()
    assert seen == [("none", {})]


@middleware("Tenant")
def test_the_testing_kit_runs_a_task_inside_the_middleware(acme):
    assert run_task(whose) == "acme"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("tests.middleware.classes.Missing", "cannot be imported"),
        ("no_such_package.Tenant", "cannot be imported"),
        ("tests.middleware.classes.a_function", "is no class"),
        ("tests.middleware.classes.NoMethods", "has no method"),
        ("tests.middleware.classes.NeedsArguments", "must be made without arguments"),
        ("tests.middleware.classes.AsyncRun", "must not be a coroutine function"),
        ("tests.middleware.classes.SyncArun", "must be a coroutine function"),
    ],
)
def test_e023_a_class_that_cannot_be_used(path, words):
    with override_settings(JOBQUEUE={"MIDDLEWARE": [path]}):
        (found,) = checks.check_middleware()
    assert found.id == "jobqueue.E023"
    assert words in found.msg


@pytest.mark.parametrize("value", ["shop.jobs.Tenant", [1], {"a": 1}, ["Tenant"]])
def test_e001_a_value_that_is_no_list_of_paths(value):
    with override_settings(JOBQUEUE={"MIDDLEWARE": value}):
        assert [found.id for found in checks.check_settings()] == ["jobqueue.E001"]


def found_by_the_check():
    """The ids of what the check finds; other tests of this process have left tasks and handlers, too."""
    return {found.id for found in checks.check_middleware()}


def test_e024_a_coroutine_task_and_a_class_with_run_only():
    with middleware("OnlyRun"):
        assert "jobqueue.E024" in found_by_the_check()
    with middleware("Tenant"):
        assert "jobqueue.E024" not in found_by_the_check()


def test_w041_a_batch_handler_runs_without_middleware():
    handler(queue="many", batch=10)(lambda leases: seen.extend(lease.options["context"] for lease in leases))
    with middleware("Outer"):
        assert "jobqueue.W041" in found_by_the_check()
    with middleware("Tenant"):
        enqueue_many("many", [1, 2])
        drain()
    assert seen == [{"tenant": "none"}] * 2


@middleware("Tenant")
def test_a_claim_reads_the_context(acme):
    whose.enqueue()
    assert claim_one().options == {"context": {"tenant": "acme"}}


def test_the_classes_are_made_once():
    with middleware("Outer"):
        from jobqueue.middleware.chain import chain

        assert chain() is chain()
        assert chain().run[0][1].__self__ is chain().enqueue[0][1].__self__
    assert classes.seen == []


@middleware("Lasts")
@pytest.mark.parametrize("place", ["before", "after"])
def test_run_is_inside_the_time_limits_of_the_job(monkeypatch, place):
    watch, slot, hard = Watch(), LeaseSlot(), []

    def last():
        hard.append(slot.hard_until)
        # As the thread that looks at the limits does, until the time is up.
        wait_until(watch.enforce)

    monkeypatch.setattr(Lasts, place, staticmethod(last))
    whose.using(timeout_seconds=0.001, hard_timeout_seconds=3600).enqueue()
    (outcome,) = perform([claim_one()], Run(slot, watch, lambda: False))
    assert isinstance(outcome.error, SoftTimeout)
    assert len(seen) == (place == "after")
    assert (hard[0] > 0, slot.hard_until) == (True, 0)


@middleware("Lasts")
def test_arun_is_inside_the_time_limits_of_the_job():
    awhose.using(timeout_seconds=0.001).enqueue()
    assert isinstance(run_lease(claim_one()).error, SoftTimeout)
    assert seen == []
