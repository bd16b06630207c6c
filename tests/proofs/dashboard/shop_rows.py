"""A shop whose bank refuses cards: what the overview shows of an hour in which one task fails."""

from __future__ import annotations

import math
import random
from datetime import timedelta

from jobqueue.db.clock import UtcNow, read_now
from jobqueue.models import JobStat, Worker
from jobqueue.stats.ends import bucket_of
from jobqueue.transitions import ack, claim, fail
from tests.factories import make_job
from tests.stats.helpers import write

QUEUE, TASK = "payments", "shop.orders.tasks.charge_card"
#: task and queue -> runs per minute, seconds waited and run, share that died
TASKS = {
    (TASK, QUEUE): (40, 0.05, 0.6, 0.05),
    ("shop.orders.tasks.send_receipt", "mail"): (90, 0.03, 0.2, 0.0),
    ("shop.media.tasks.resize_picture", "media"): (25, 0.4, 1.8, 0.0),
}
DEAD = 25
_SOURCE = """
class CardDeclined(Exception):
    pass


def charge_card(order, cents):
    payment = authorize(order, cents)
    return payment.reference


def authorize(order, cents):
    raise CardDeclined(f"order {order}: the bank has refused the card")
"""


def fill():
    """Dead letters of one kind, jobs that wait, run and were done, workers, and the statistics of an hour."""
    now = read_now("default")
    for number in range(3):
        Worker.objects.create(
            name=f"web-{number}:21{number}:5f0c2a9{number}/1.1", host=f"web-{number}", pid=210 + number, queues="*",
            supervisor_pid=200, boot_id=f"5f0c2a9{number}", concurrency=8, version="0.1", heartbeat_at=UtcNow(),
            heartbeat_seconds=3600.0, started_at=now - timedelta(hours=9),
        )  # fmt: skip
    _statistics(now)
    module = {"__name__": "shop.payments"}
    exec(compile(_SOURCE, "/srv/shop/payments.py", "exec"), module)
    for number in range(DEAD):
        order = 1040 + number
        make_job(QUEUE, {"args": [order, 4990], "kwargs": {}}, task=TASK, max_attempts=1)
        (lease,) = claim(QUEUE, worker="web-1:211:5f0c2a91/1.1")
        fail(lease, error=_error(module["charge_card"], order))
    for queue, (task, _queue) in zip(("mail", "media"), list(TASKS)[1:], strict=True):
        for number in range(6):
            make_job(queue, {"args": [number], "kwargs": {}}, task=task)
        for lease in claim(queue, limit=2, worker="web-2:212:5f0c2a92/1.1", lease_seconds=3600)[:1]:
            ack(lease, result="sent")


def _error(task, order):
    """The exception of a run, without the frame of who has called the task."""
    try:
        task(order, 4990)
    except Exception as error:
        return error.with_traceback(error.__traceback__.tb_next)


def _statistics(now):
    dice, minute, rows = random.Random(7), now.replace(second=0, microsecond=0), []
    for ago in range(1, 61):
        for number, ((task, queue), (runs, waited, ran, died)) in enumerate(TASKS.items()):
            count = round(runs * (1 + 0.2 * math.sin(ago / 7)) * dice.uniform(0.9, 1.1))
            dead = round(count * died) if ago < 20 else 0
            rows.append(JobStat(
                id=f"{ago}-{number}".encode().ljust(16, b"."), span=JobStat.Span.MINUTE, queue=queue, task=task,
                begins_at=minute - timedelta(minutes=ago), done=count - dead, dead=dead, runs=count,
                wait_us=round(count * waited * 1e6), wait_us_max=round(3 * waited * 1e6),
                run_us=round(count * ran * 1e6), run_us_max=round(3 * ran * 1e6),
                wait_times={str(bucket_of(waited)): count}, run_times={str(bucket_of(ran)): count},
            ))  # fmt: skip
    write(rows)
