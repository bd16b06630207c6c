"""Rows for every page, whose names are as long and as hostile as the columns let them be."""

from datetime import timedelta

from django.db import transaction

from jobqueue import bulk_verbs, dead_letters, enqueue, flow, workflow
from jobqueue.db.clock import UtcNow, read_now
from jobqueue.idempotency import once
from jobqueue.models import (
    IdempotencyRecord,
    JobAlarm,
    JobStat,
    LockRow,
    LockStat,
    MutexRow,
    OutboxEvent,
    Worker,
)
from jobqueue.outbox import publish
from jobqueue.schedules import versions
from jobqueue.schedules.declaring import declare, withdraw
from jobqueue.testing import expire_lease
from jobqueue.transitions import ack, cancel, claim, fail, reap
from tests.app import tasks
from tests.factories import job, make_job, set_columns
from tests.lockstats.test_lock_activity import count_keys, keep
from tests.stats.helpers import add

LONG = "a-very-long-name-without-a-single-space-" * 7
#: of a queue: Latin without a place to break, and Korean, with what a page must not run
QUEUE = f"{LONG[:40]}-<b>-주문-큐-이름"
TASK = f"shop.orders.tasks.{LONG[:200]}"
KEY = f"order-{LONG[:50]}"
WORKER = f"{LONG[:60]}.example.internal:4711:5f0c2a9e/1.1"
ERROR = f'Traceback (most recent call last):\n  File "{LONG}.py", line 7\nValueError: {LONG}<script>alert(1)</script>'
PAYLOAD = {
    "name": LONG,
    "한국어": "주문 번호 " * 30,
    "html": "<img src=x onerror=alert(1)>",
    "rtl": "a\u202eb",
    "emoji": "\U0001f469\u200d\U0001f467",
}
#: URL name -> the query without which the page shows nothing
QUERIES = {
    "jobqueue_flowrule_queue": {"queue": QUEUE},
    "jobqueue_flowrule_breaker": {"dependency": LONG[:60]},
    "jobqueue_auditevent_new": {"state": "failed", "queue": QUEUE},
}


def fill():
    """Rows of every table that has a page."""
    _jobs()
    _workers()
    _outbox()
    _locks()
    _workflow()
    _figures()
    bulk_verbs.record("retry", {"state": "failed", "queue": QUEUE}, who=bulk_verbs.Who("1", "root"), reason=LONG[:200])
    flow.set_limit(QUEUE, concurrency=3, rate="5/s")
    flow.pause(QUEUE, reason=LONG[:200], by="root")
    flow.breaker(LONG[:60]).open(LONG[:200])
    declare(LONG[:100], tasks.add, (1, 2), None, {"cron": "*/5 9-17 * * mon-fri"}, "code")
    versions.announce("default")
    # This process forgets it: the next test may declare it again.
    withdraw(LONG[:100])
    with once(KEY):
        pass
    IdempotencyRecord.objects.update(result=PAYLOAD)


def _jobs():
    for name in ("ready", "scheduled"):
        number = enqueue(QUEUE, PAYLOAD, dedupe_key=f"{KEY}-{name}"[:64], ordering_key=KEY[:60])
        set_columns(number, task=TASK)
    set_columns(number, run_at=read_now("default") + timedelta(hours=2), wait_reason="scheduled")
    for queue, end in (("ends-done", ack), ("ends-failed", fail)):
        make_job(queue, PAYLOAD)
        for _ in range(2 if end is fail else 1):
            (lease,) = claim(queue, worker=WORKER)
            end(lease, **({"result": PAYLOAD} if end is ack else {"error": ERROR, "delay_seconds": 0}))
        set_columns(lease.job_id, queue=QUEUE, task=TASK)
    set_columns(make_job("held", PAYLOAD), task=TASK)
    claim("held", worker=WORKER, lease_seconds=3600)
    cancel(make_job(QUEUE, PAYLOAD))
    make_job("lost", PAYLOAD)
    expire_lease(claim("lost", worker=WORKER)[0])
    reap()
    _dead_letters()


def _dead_letters():
    for number in range(3):
        job_id = make_job("dies", PAYLOAD, max_attempts=1, task=TASK)
        fail(claim("dies", worker=WORKER)[0], error=f"{ERROR} {number}")
        set_columns(job_id, queue=QUEUE)
    dead_letters.note(job(job_id).fingerprint, LONG, by="root")
    dead_letters.redrive(queue=QUEUE, canary=1, rate="5/s")


def _workflow():
    """Three nodes in a row, and two beside them."""
    made = workflow(LONG[:200])
    first = made.add(tasks.add, 1, 2, name=LONG[:120])
    beside = [made.add(tasks.greet, LONG, 3, after=[first], name=f"{LONG[:120]}{n}") for n in range(2)]
    made.add(tasks.add, 3, 4, after=[first, *beside], name="끝-이름이-아주-긴-노드")
    made.start()


def _figures():
    """An alarm that fires, and what ended in the last ten minutes."""
    now = read_now("default")
    JobAlarm.objects.create(
        queue=QUEUE, name="oldest_age_seconds", firing=True, value=431.5, threshold=120, incident=1, since=now,
        looked_at=now,
    )  # fmt: skip
    minute = now.replace(second=0, microsecond=0)
    for ago in range(10):
        add(
            JobStat.Span.MINUTE, minute - timedelta(minutes=ago), QUEUE, TASK, done=90, retried=7, dead=3, canceled=1,
            runs=100, wait_us=10**8, wait_us_max=10**7, run_us=10**9, run_us_max=10**8, wait_times={"6": 100},
            run_times={"8": 90, "11": 10},
        )  # fmt: skip


def _workers():
    for number, stopped in enumerate((None, UtcNow())):
        Worker.objects.create(
            name=f"{WORKER}{number}", host=LONG[:60], pid=4711, supervisor_pid=1, boot_id="5f0c2a9e", concurrency=8,
            queues=f"{QUEUE},mail", version="0.1", stopped_at=stopped, stop_reason=LONG[:150] if stopped else "",
        )  # fmt: skip


def _outbox():
    with transaction.atomic():
        publish(f"order.{LONG[:80]}", PAYLOAD, KEY[:60])
        event_id = publish(f"order.{LONG[:80]}", PAYLOAD, KEY[:60])
    OutboxEvent.objects.filter(pk=event_id).update(due_at=None, failed_at=UtcNow(), last_error=ERROR)


def _locks():
    count_keys(LONG[:80], KEY)
    keep(LONG)
    plain = {"fence": 2**62, "owner": LONG[:200], "expires_at": read_now("default") + timedelta(minutes=10)}
    LockRow.objects.create(lock_key=f"{KEY}/{LONG[:150]}", owner_token=b"t" * 16, **plain)
    MutexRow.objects.create(lock_key=f"{KEY}<b>{LONG[:150]}", takes=10**9)
    LockStat.objects.create(id=b"r" * 16, kind="transaction", lock_key="claim deadlock", contended=12, failed=1)
