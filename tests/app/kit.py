"""Tasks for the tests of jobqueue.testing: they write rows, fail in every way, and enqueue others."""

from datetime import timedelta

from asgiref.sync import sync_to_async
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from jobqueue import current_job, handler, task
from tests.app.models import Ticket


def sell(number):
    """One row."""
    Ticket.objects.create(number=number, sold=True)


@task
def sells(number):
    sell(number)
    return [number]


@task(queue_name="slow", priority=3)
def sells_slowly(number, *, buyer=""):
    Ticket.objects.create(number=number, buyer=buyer)


@task(takes_context=True, max_attempts=3)
def fails_twice(context, number):
    sell(f"{number}-{context.attempt}")
    if context.attempt < 3:
        raise ValueError(f"attempt {context.attempt}")


@task(max_attempts=2)
def always_fails():
    raise LookupError("never")


@task(takes_context=True)
def finishes(context, number):
    with context.finish(result={"sold": number}):
        sell(number)


@task(takes_context=True)
def finishes_in_a_transaction(context, number):
    with transaction.atomic(durable=True):
        with context.finish(result=1):
            sell(number)


@task
def tells_its_tick():
    tick = current_job().tick
    return tick and tick.isoformat()


@task
def enqueues_when_committed(number):
    with transaction.atomic():
        transaction.on_commit(lambda: sells.enqueue(number))
        sell(f"{number}-parent")


@task
def enqueues_itself():
    enqueues_itself.enqueue()


@task(max_attempts=1)
def breaks_the_statement():
    with connection.cursor() as cursor:
        cursor.execute("SELECT no_such_column")


@task(max_attempts=1)
def sells_twice(number):
    try:
        sell(number)
        sell(number)
    except IntegrityError:
        return "twice"


@task(takes_context=True)
def tells(context, *words):
    context.heartbeat()
    same = current_job().job_id == context.job_id
    return [context.attempt, context.queue, context.fence, len(context.token), same, context.should_stop, *words]


@task
async def sells_as_a_coroutine(number):
    await sync_to_async(sell)(number)
    return number


@task
def sells_once(number):
    Ticket.objects.get_or_create(number=number)


@task(max_attempts=2)
def sells_another():
    sell(f"n{Ticket.objects.count()}")


@task
def comes_later(seconds):
    sells.using(run_after=timezone.now() + timedelta(seconds=seconds)).enqueue("later")


@handler("parcels")
def ship(payload):
    sell(payload["number"])
    return "shipped"
