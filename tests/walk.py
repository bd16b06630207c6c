"""Every public function that writes or looks for binary values or names, each as one step that needs nothing before it.

Keys are bytes that are no text in any character set, and hold what an escape must not miss.
"""

import os
import uuid

from django.db import transaction
from django.db.models import Q

from jobqueue import enqueue, enqueue_many
from jobqueue.allocate import take
from jobqueue.counter import ShardedCounter
from jobqueue.db.clock import UtcNowPlus
from jobqueue.idempotency import once
from jobqueue.locks import lease_lock, mutex, named_lock
from jobqueue.locks.lease import sweep as sweep_locks
from jobqueue.lockstats import recorder
from jobqueue.models import HeldKey, IdempotencyRecord, Job, LockFinding, OutboxEvent
from jobqueue.ordering.lanes import hot_keys, stuck_keys
from jobqueue.outbox import operator, publish, statements
from jobqueue.outbox.claiming import EventClaimer
from jobqueue.transitions import (
    ack,
    ack_many,
    cancel,
    cancel_held,
    claim,
    discard,
    extend_held,
    fail,
    fail_many,
    heartbeat,
    heartbeat_many,
    held_by,
    reap,
    release,
    release_held,
    release_many,
    resume,
    retry,
    snooze,
)
from jobqueue.transitions.renewing import note_progress
from tests.app.models import Ticket
from tests.settings import VENDOR

#: MySQL refuses looks at statements that have such characters in names; MariaDB shows them as question marks
WIDE = "😀" if VENDOR == "mysql" else "ü"


def key():
    """A key of its own: NUL, a quote, a backslash, and bytes that are no UTF-8."""
    return b"\x00'\\\xff\xfe%s" + os.urandom(16)


def _queue():
    return f"walk-{WIDE}-{uuid.uuid4().hex[:16]}"


def _leases(count=1, **options):
    queue = _queue()
    enqueue_many(queue, list(range(count)), **options)
    found = claim(queue, count, worker=queue)
    assert len(found) == count
    return found


def _enqueue():
    queue, same = _queue(), key()
    first = enqueue(queue, 1, dedupe_key=same)
    assert enqueue(queue, 2, dedupe_key=same) == first
    with transaction.atomic():
        assert enqueue(queue, 3, dedupe_key=same) == first
    lease = claim(queue, worker=queue)[0]
    ack(lease)
    Job.objects.filter(pk=first).update(finished_at=UtcNowPlus(-1e6))
    assert enqueue(queue, 4, dedupe_key=same) != first
    assert retry(first) is False


def _enqueue_many():
    queue, keys = _queue(), [key(), None, key()]
    ids = enqueue_many(queue, [1, 2, 3], dedupe_keys=keys)
    assert enqueue_many(queue, [1, 4, 3], dedupe_keys=keys)[::2] == ids[::2]


def _ordered():
    queue, same = _queue(), key()
    ids = enqueue_many(queue, [1, 2, 3], ordering_key=same)
    ids.append(enqueue(queue, 4, ordering_key=same))
    ack(claim(queue, 9, worker=queue)[0])
    fail(claim(queue, 9, worker=queue)[0], error="no more", retry=False)
    assert stuck_keys(queue=queue, using="default")[0].ordering_key == same
    assert hot_keys(queue=queue, using="default")
    assert resume(queue, same)
    assert claim(queue, 9, worker=queue)[0].job_id == ids[2]


def _settle():
    one, two, three, four, five, six, *rest = _leases(12)
    heartbeat(one, lease_seconds=60)
    assert heartbeat_many([one, two, three], lease_seconds=60) == []
    assert note_progress(one, {"done": 1, "note": WIDE})
    ack(one, result={"text": f"schön {WIDE}"})
    assert ack_many([two, three], results=[1, 2]) == []
    fail(four, error=f"boom {WIDE}")
    fail_many([five], error=f"boom {WIDE}")
    snooze(six, delay_seconds=60, reason=WIDE)
    release(rest[0])
    assert release_many(rest[1:3]) == []
    assert len(held_by(rest[3].worker, using="default")) == len(rest) - 3
    cancel(rest[3].job_id)
    cancel_held(rest[3])
    assert extend_held(rest[4].job_id, 600)
    release_held(rest[4].job_id)
    Job.objects.filter(pk=rest[5].job_id).update(lock_until=UtcNowPlus(-60))
    reap()


def _operate():
    queue = _queue()
    first, second, third = enqueue_many(queue, [1, 2, 3], dedupe_keys=[key(), key(), key()])
    assert cancel(first)
    assert retry(first)
    assert discard(second)
    fail(claim(queue, worker=queue)[0], error="boom", retry=False)
    assert Job.objects.filter(pk__in=[first, third], status=Job.Status.FAILED).count() == 1


def _outbox():
    topic, same = _queue(), key()
    with transaction.atomic():
        for number in range(4):
            publish(topic, {"n": number}, key=same)
        publish(topic, {"n": 4})
    claimer = EventClaimer("default", lease_seconds=60, topics=[topic])
    batch = next(found for found in (claimer.claim(10) for _ in range(10_000)) if found is not None)
    events = [event for lane in batch.lanes.values() for event in lane]
    ids = [event.id for event in events]
    assert statements.renew(ids, batch.token, lease_seconds=60, using="default")
    statements.dead_letter(events[0], batch.token, f"boom {WIDE}", using="default")
    statements.release(ids[1:2], batch.token, using="default")
    statements.mark_processed(ids[2:], batch.token, using="default")
    assert OutboxEvent.objects.filter(key__in=[same, key()]).count() == 4
    assert operator.retry(ids[0])


def _once():
    with once(f"{WIDE}{uuid.uuid4()}", 60) as o:
        o.result = WIDE
    same = uuid.uuid4()
    for _ in range(2):
        with once(same, 60, fingerprint=b"\xff\xfe") as o:
            o.result = o.result if o.done else "done"
    IdempotencyRecord.objects.filter(label__contains=str(same)).update(expires_at=UtcNowPlus(-60))
    with once(same, 60, timeout_seconds=0) as o:
        assert not o.done
    with transaction.atomic(), once(uuid.uuid4(), 60, timeout_seconds=0):
        pass


def _take():
    name = uuid.uuid4().hex[:12]
    Ticket.objects.bulk_create(Ticket(number=f"{name}{n}", buyer=name) for n in range(3))
    mine, request = Ticket.objects.filter(sold=False, buyer=name).order_by("number"), key()
    first = take(mine, 2, changes={"sold": True}, request_id=request)
    assert take(mine, 2, changes={"sold": True}, request_id=request) == first
    take(mine, 1, changes={"sold": True})


def _locks():
    name = f"{WIDE}{uuid.uuid4().hex}"
    with lease_lock(name, 60, 5) as lock:
        lock.renew()
    with lease_lock(name, 60, 5):
        pass
    with transaction.atomic():
        mutex(name)
    if VENDOR != "sqlite":
        with named_lock(name, 5):
            pass
    sweep_locks()


def _figures():
    counter = ShardedCounter(f"{WIDE}{uuid.uuid4().hex}")
    for n in range(1, 3):
        counter.add(n)
    assert counter.value() == 3
    recorder.keep_findings(
        [recorder.Finding(LockFinding.Kind.DEADLOCK, uuid.uuid4().hex, {f"a{WIDE}": f"b{WIDE}"}) for _ in range(2)],
        using="default",
    )


def _orm():
    """As a project writes it: lookups of every kind, instances, and rows in bulk."""
    queue, one, two = _queue(), key(), key()
    Job.objects.create(queue=queue, payload={}, dedupe_key=one)
    Job.objects.bulk_create(
        [Job(queue=queue, payload={}, dedupe_key=two, ordering_key=one), Job(queue=queue, payload={}, task=WIDE)]
    )
    rows = Job.objects.filter(queue=queue)
    assert rows.get(dedupe_key=one).dedupe_key == one
    assert rows.filter(dedupe_key__in=[one, two, None]).count() == 2
    assert rows.filter(Q(dedupe_key=one) | Q(ordering_key=one)).count() == 2
    assert rows.exclude(dedupe_key=one).count() == 2
    low, high = sorted([one, two])
    assert [rows.filter(dedupe_key__gt=low).count(), rows.filter(dedupe_key__gte=low).count()] == [1, 2]
    assert [rows.filter(dedupe_key__lt=high).count(), rows.filter(dedupe_key__lte=high).count()] == [1, 2]
    assert rows.filter(dedupe_key__range=(low, high)).count() == 2
    assert rows.filter(task__in=[WIDE, "a", None]).count() == 1
    assert [rows.filter(task__gte=WIDE).count(), rows.filter(task__lt=WIDE).count()] == [1, 0]
    assert rows.filter(Q(task=WIDE) | Q(last_error=WIDE) | Q(task__range=(WIDE, WIDE))).count() == 1
    found = rows.get(dedupe_key=two)
    found.task = WIDE
    found.last_error = WIDE
    found.released_key = one
    found.save()
    found.released_key = two
    Job.objects.bulk_update([found], ["released_key", "task"])
    assert rows.filter(pk=found.pk).update(dedupe_key=None, released_key=one) == 1
    assert rows.get(released_key=one).pk == found.pk
    digest = key()
    assert HeldKey.objects.get_or_create(digest=digest)[1]
    assert HeldKey.objects.get(pk=digest).digest == digest
    assert HeldKey.objects.in_bulk([digest])
    HeldKey.objects.get(pk=digest).delete()
    assert HeldKey.objects.filter(pk__in=[digest]).delete()[0] == 0


STEPS = {
    "enqueue": _enqueue,
    "enqueue_many": _enqueue_many,
    "ordered": _ordered,
    "settle": _settle,
    "operate": _operate,
    "outbox": _outbox,
    "once": _once,
    "take": _take,
    "locks": _locks,
    "figures": _figures,
    "orm": _orm,
}
