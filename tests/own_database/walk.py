"""Every public function, called in a project whose queue has a database of its own.

A call is made outside of every transaction unless it says otherwise, on a queue that is empty. It returns the models of
which the queue's database must then have rows.
"""

import uuid
from datetime import UTC, datetime, timedelta

from asgiref.sync import async_to_sync
from django.db import transaction
from django.http import HttpResponse
from django.test import RequestFactory

import jobqueue
from jobqueue import alarms, doctor, groups, idempotency, inspect, locks, metrics, models, outbox, testing, transitions
from jobqueue.allocate import take
from jobqueue.bulk import delete_in_chunks, update_in_chunks
from jobqueue.context import job_context as context
from jobqueue.counter import ShardedCounter
from jobqueue.db.clock import UtcNow, UtcNowPlus, read_now
from jobqueue.metrics import prometheus_text, read_figures
from jobqueue.schedules.declaring import withdraw
from jobqueue.transactions import forbid_outside_calls, lock_rows, retry_transaction
from tests.app import tasks
from tests.app.models import Account, Ticket
from tests.settings import VENDOR

QUEUE, SHOP = "queue", "shop"
#: "module.name" -> the call
WALK = {}


def walks(*names):
    """The function below calls these."""

    def note(call):
        WALK.update(dict.fromkeys(names, call))
        return call

    return note


def a_job(queue="q", **columns):
    """The id of a job in the queue's database."""
    job_id = jobqueue.enqueue(queue, 1)
    if columns:
        models.Job.objects.using(QUEUE).filter(pk=job_id).update(**columns)
    return job_id


def a_lease(**columns):
    """The lease of a job."""
    job_id = a_job()
    (lease,) = transitions.claim("q", worker="w")
    assert lease.job_id == job_id
    if columns:
        models.Job.objects.using(QUEUE).filter(pk=job_id).update(**columns)
    return lease


def status(job_id):
    """The name of a job's state, in the queue's database."""
    return models.Job.Status(models.Job.objects.using(QUEUE).get(pk=job_id).status).name


@walks("jobqueue.enqueue")
def enqueue():
    jobqueue.enqueue("q", 1, dedupe_key="d")
    jobqueue.enqueue("q", 1, ordering_key="k")
    return models.Job, models.HeldKey


@walks("jobqueue.enqueue_many")
def enqueue_many():
    jobqueue.enqueue_many("q", [1, 2], dedupe_keys=["a", "b"])
    return (models.Job,)


@walks("jobqueue.task")
def task():
    tasks.add.enqueue(1, 2)
    tasks.add.using(dedupe_key="d").enqueue(1, 2)
    return (models.Job,)


@walks("jobqueue.current_job", "jobqueue.context.job_context.JobContext")
def current_job():
    running = context.JobContext(a_lease())
    running.progress(1, 2)
    running.heartbeat()
    with running.finish(result=1):
        a_job("effects")
    assert status(running.job_id) == "DONE"
    return (models.Job,)


@walks("jobqueue.transitions.claim", "jobqueue.transitions.held_by", "jobqueue.transitions.Lease")
def claim():
    lease = a_lease()
    assert [found.job_id for found in transitions.held_by("w", using=QUEUE)] == [lease.job_id]
    return (models.Job,)


@walks("jobqueue.transitions.ack", "jobqueue.transitions.ack_many")
def ack():
    transitions.ack(a_lease(), result=1)
    assert transitions.ack_many([a_lease()]) == []
    return (models.Job,)


@walks("jobqueue.transitions.fail", "jobqueue.transitions.fail_many", "jobqueue.transitions.retry")
def fail_and_retry():
    lease = a_lease()
    transitions.fail(lease, error="boom", retry=False)
    assert transitions.retry(lease.job_id)
    models.Job.objects.using(QUEUE).update(run_at=UtcNowPlus(600))
    assert transitions.fail_many([a_lease()], error="boom") == []
    return models.Job, models.JobAttempt


@walks("jobqueue.transitions.snooze", "jobqueue.transitions.release", "jobqueue.transitions.cancel_held")
def give_back():
    lease = a_lease()
    transitions.release(lease)
    (lease,) = transitions.claim("q", worker="w")
    transitions.snooze(lease, delay_seconds=60)
    transitions.cancel_held(a_lease())
    return (models.Job,)


@walks("jobqueue.transitions.release_many", "jobqueue.transitions.release_held", "jobqueue.transitions.snooze_many")
def release():
    assert transitions.snooze_many([a_lease()], delay_seconds=600, reason="later") == []
    assert transitions.release_many([a_lease()]) == []
    (lease,) = transitions.claim("q", worker="w")
    assert transitions.release_held(lease.job_id)
    return (models.Job,)


@walks("jobqueue.transitions.heartbeat", "jobqueue.transitions.heartbeat_many", "jobqueue.transitions.extend_held")
def heartbeat():
    lease = a_lease()
    assert transitions.heartbeat(lease, lease_seconds=600) > lease.lock_until
    assert transitions.heartbeat_many([lease], lease_seconds=600) == []
    assert transitions.extend_held(lease.job_id, 3600)
    return (models.Job,)


@walks("jobqueue.transitions.reap", "jobqueue.transitions.Reaped")
def reap():
    a_lease(lock_until=UtcNowPlus(-60))
    assert transitions.reap() == transitions.Reaped(1, 0, 0)
    return (models.Job,)


@walks("jobqueue.transitions.edit")
def edit():
    job_id = a_job("edited")
    assert transitions.edit(job_id, priority=3, tags=["walk"])
    assert models.Job.objects.using(QUEUE).values_list("priority", flat=True).get(pk=job_id) == 3
    return (models.Job,)


@walks(
    "jobqueue.transitions.cancel_many",
    "jobqueue.transitions.discard_many",
    "jobqueue.transitions.retry_many",
    "jobqueue.transitions.run_again",
)
def many():
    a_job("many")
    assert transitions.cancel_many(queue="many") == 1
    assert transitions.retry_many(queue="many") == 1
    assert transitions.discard_many(queue="many") == 1
    transitions.run_again(a_lease_that_ended())
    return (models.Job,)


def a_lease_that_ended():
    """The id of a job that is DONE."""
    lease = a_lease()
    transitions.ack(lease)
    return lease.job_id


@walks("jobqueue.schedule", "jobqueue.testing.fire", "jobqueue.testing.ticks")
def schedule():
    name = f"walk {uuid.uuid4()}"
    jobqueue.schedule(every=60, name=name, args=(1, 2))(tasks.add)
    try:
        now = datetime.now(UTC)
        assert len(testing.ticks(name, now, now + timedelta(minutes=2))) == 2
        testing.fire(name)
    finally:
        withdraw(name)
    return (models.Job,)


@walks("jobqueue.group")
def group():
    with jobqueue.group("walk") as made:
        made.add(tasks.add, 1, 2)
    return models.Job, models.JobGroup, models.GroupMember


@walks("jobqueue.workflow")
def workflow():
    made = jobqueue.workflow("walk")
    made.add(tasks.add, 1, 2, name="parent")
    made.add(tasks.add, 1, 2, after=["parent"])
    number = made.start()
    assert groups.cancel(number)
    assert groups.resume(number).runs == ("parent",)
    return models.Job, models.JobGroup, models.GroupMember, models.GroupParent


@walks("jobqueue.transitions.cancel", "jobqueue.transitions.discard")
def cancel():
    assert transitions.cancel(a_job())
    assert transitions.discard(a_job())
    return (models.Job,)


@walks("jobqueue.transitions.resume")
def resume():
    job_id = jobqueue.enqueue("q", 1, ordering_key="k")
    (lease,) = transitions.claim("q", worker="w")
    transitions.fail(lease, error="boom", retry=False)
    transitions.resume("q", "k")
    assert status(job_id) == "FAILED"
    return models.Job, models.HeldKey


@walks("jobqueue.locks.mutex", "jobqueue.locks.mutex_many", "jobqueue.locks.amutex", "jobqueue.locks.Mutex")
def mutex():
    with transaction.atomic(using=QUEUE):
        locks.mutex("k")
        locks.mutex_many([("a", 1), "b"], timeout_seconds=5)
        async_to_sync(locks.amutex)("c", timeout_seconds=5)
    return (models.MutexRow,)


@walks("jobqueue.locks.lease_lock", "jobqueue.locks.lock_all", "jobqueue.locks.LeaseLock", "jobqueue.locks.Lock")
def lease_lock():
    with locks.lease_lock("a", 60, 0) as lock, locks.lock_all(locks.lease_lock("b", 60)):
        lock.renew()
        assert models.LockRow.objects.using(QUEUE).count() == 2
    return (models.LockRow,)


@walks("jobqueue.locks.named_lock", "jobqueue.locks.NamedLock")
def named_lock():
    if VENDOR != "sqlite":
        with locks.named_lock("n", 5):
            pass
    return ()


@walks("jobqueue.allocate.take")
def take_rows():
    """The host's rows decide which database it is."""
    for number in range(2):
        Ticket.objects.using(SHOP).create(number=number)
    free = Ticket.objects.using(SHOP).filter(sold=False).order_by("number")
    assert [row.number for row in take(free, changes={"sold": True})] == ["0"]
    assert Ticket.objects.using(SHOP).filter(sold=True).count() == 1
    return ()


@walks("jobqueue.idempotency.once", "jobqueue.idempotency.Once")
def once():
    for _ in range(2):
        with idempotency.once("k") as o:
            if not o.done:
                a_job()
                o.result = 1
    assert models.Job.objects.using(QUEUE).count() == 1
    return models.Job, models.IdempotencyRecord


@walks("jobqueue.idempotency.idempotent_view")
def idempotent_view():
    @idempotency.idempotent_view()
    def view(request):
        a_job()
        return HttpResponse("done")

    for _ in range(2):
        assert view(RequestFactory().post("/", headers={"Idempotency-Key": "k"})).content == b"done"
    assert models.Job.objects.using(QUEUE).count() == 1
    return models.Job, models.IdempotencyRecord


@walks("jobqueue.outbox.publish")
def publish():
    with transaction.atomic(using=QUEUE):
        outbox.publish("t", 1)
        outbox.publish("t", 1, key="k")
    return models.OutboxEvent, models.HeldKey


@walks("jobqueue.outbox.Relay")
def relay():
    publish()
    pump = outbox.Relay(QUEUE)
    assert pump.run_once() > 0
    pump.close()
    return (models.OutboxEvent,)


@walks("jobqueue.outbox.dead_letters", "jobqueue.outbox.retry", "jobqueue.outbox.skip", "jobqueue.outbox.discard")
def about_dead_letters():
    publish()
    events = models.OutboxEvent.objects.using(QUEUE)
    for verb in (outbox.skip, outbox.retry, outbox.discard):
        events.update(failed_at=UtcNow(), due_at=None)
        assert [verb(event.pk) for event in outbox.dead_letters()] == [True, True]
    return (models.OutboxEvent,)


@walks("jobqueue.inspect.lock_footprint", "jobqueue.inspect.assert_locks_at_most", "jobqueue.inspect.Footprint")
def footprint():
    a_job()
    if VENDOR != "sqlite":
        with transaction.atomic(using=QUEUE), inspect.lock_footprint() as found:
            list(models.Job.objects.using(QUEUE).select_for_update())
        assert found.rows
        with transaction.atomic(using=QUEUE), inspect.assert_locks_at_most(rows=0):
            pass
    return (models.Job,)


@walks("jobqueue.testing.drain", "jobqueue.testing.run_inline", "jobqueue.testing.travel", "jobqueue.testing.Drained")
def drain():
    tasks.ordered.enqueue(1)
    assert testing.drain().ok == 1
    with testing.run_inline() as ran:
        tasks.ordered.enqueue(2)
    assert ran.ok == 1
    late = tasks.ordered.using(run_after=read_now(QUEUE) + timedelta(days=1)).enqueue(3)
    with testing.travel(timedelta(days=2)):
        assert testing.drain().ok == 1
    assert status(late.id) == "DONE"
    return (models.Job,)


@walks("jobqueue.testing.run_task", "jobqueue.testing.assert_idempotent", "jobqueue.testing.JobRun")
def run_task():
    assert testing.run_task(tasks.add, 1, 2) == 3
    testing.assert_idempotent(tasks.ordered, 1, effect=lambda: 0)
    return (models.Job,)


@walks("jobqueue.testing.assert_enqueued", "jobqueue.testing.refute_enqueued", "jobqueue.testing.expire_lease")
def assert_enqueued():
    testing.refute_enqueued("q")
    lease = a_lease()
    testing.assert_enqueued("q", count=1)
    testing.expire_lease(lease)
    assert transitions.reap() == transitions.Reaped(1, 0, 0)
    return (models.Job,)


@walks("jobqueue.testing.inject")
def inject():
    with testing.inject("deadlock", at="INSERT") as injected:
        a_job()
    assert injected.count == 1
    return (models.Job,)


@walks("jobqueue.alarms.firing", "jobqueue.alarms.Alarm")
def firing():
    columns = {"since": UtcNow(), "value": 5, "threshold": 3, "incident": 1}
    models.JobAlarm.objects.using(QUEUE).create(queue="q", name="ready", firing=True, **columns)
    assert [alarm.queue for alarm in alarms.firing()] == ["q"]
    return (models.JobAlarm,)


@walks("jobqueue.counter.ShardedCounter")
def counter():
    visits = ShardedCounter("visits")
    visits.add(2)
    async_to_sync(visits.aadd)(3)
    assert visits.value() == async_to_sync(visits.avalue)() == 5
    return (models.CounterShard,)


@walks("jobqueue.bulk.update_in_chunks", "jobqueue.bulk.delete_in_chunks", "jobqueue.bulk.ChunkProgress")
def in_chunks():
    """The host's rows decide which database it is."""
    rows = Ticket.objects.using(SHOP)
    rows.create(number=1)
    assert update_in_chunks(rows.all(), {"sold": True}).rows == 1
    assert delete_in_chunks(rows.all()).rows == 1
    return ()


@walks("jobqueue.transactions.lock_rows")
def lock_own_rows():
    """The host's rows decide which database it is."""
    Ticket.objects.using(SHOP).create(number=1)
    with transaction.atomic(using=SHOP):
        assert len(lock_rows(Ticket.objects.using(SHOP))) == 1
    return ()


@walks("jobqueue.transactions.retry_transaction", "jobqueue.transactions.forbid_outside_calls")
def transactions():
    """On "default" unless it is told otherwise, whatever the queue's database is."""
    with forbid_outside_calls():
        retry_transaction(lambda: Ticket.objects.create(number=1))()
        retry_transaction(using=QUEUE)(a_job)()
    assert Ticket.objects.using("default").count() == 1
    return (models.Job,)


@walks("jobqueue.fencing.FencedModel", "jobqueue.fencing.FencedQuerySet")
def fencing():
    """The host's rows decide which database it is."""
    with locks.lease_lock("a", 60, 0) as lock:
        account = Account.objects.using(SHOP).create()
        assert Account.objects.using(SHOP).filter(pk=account.pk).fenced_update(lock, balance=1) == 1
        account.fenced_save(lock, using=SHOP)
    return (models.LockRow,)


@walks("jobqueue.metrics.view")
def metrics_view():
    a_job()
    # The view refuses a request without a token; what it would serve is of the queue's database.
    assert metrics.view(RequestFactory().get("/metrics")).status_code == 403
    assert 'jobqueue_jobs{queue="q",state="ready"} 1.0' in prometheus_text(read_figures(using=QUEUE))
    return (models.Job,)


@walks("jobqueue.doctor.examine")
def examine():
    a_job()
    found = {finding.id: finding for finding in doctor.examine()}
    assert found["no_worker"].evidence["queues"] == ["q"]
    assert "check_failed" not in found
    return (models.Job,)
