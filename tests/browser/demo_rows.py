"""What the pictures show beside the sample jobs of `make serve`: a shop on a weekday, with the troubles of a weekday.

All names and figures are fixed, so that two runs differ in their times only.
"""

import math
import random
from datetime import timedelta

from django.db import transaction

from demo_project.demo import samples, tasks
from jobqueue import dead_letters, flow, workflow
from jobqueue.db.clock import UtcNow, read_now
from jobqueue.models import Job, JobStat, LockStat, OutboxEvent, Schedule, ScheduleTick, Worker
from jobqueue.outbox import publish
from jobqueue.schedules import versions
from jobqueue.schedules.declaring import declare
from jobqueue.stats.ends import bucket_of
from jobqueue.transitions import ack, claim, fail
from tests.stats.helpers import write

VERSION = "0.1"
#: task -> runs per minute at noon, seconds waited and run, shares of runs that failed and of jobs that died
RATES = {
    tasks.send_receipt: (90, 0.03, 0.2, 0.04, 0.004),
    tasks.charge_card: (40, 0.05, 0.6, 0.03, 0.01),
    tasks.resize_picture: (25, 0.4, 1.8, 0.02, 0.005),
    tasks.import_prices: (2, 3.0, 40.0, 0.1, 0.02),
    tasks.sales_report: (1, 20.0, 6.0, 0.01, 0.0),
}
HISTORY_MINUTES = 24 * 60


def fill():
    """Rows of every page, in an empty database."""
    samples.replace_samples()
    now = read_now("default")
    _workers(now)
    _statistics(now)
    _workflow()
    _last_minute()
    _outbox(now)
    _locks()
    _schedules()
    kind = Job.objects.filter(status=Job.Status.FAILED, task=tasks.charge_card.module_path).first()
    dead_letters.note(kind.fingerprint, "The customer is asked for another card: do not retry these.", by="mina")
    flow.breaker("payment-service").open("The bank maintains its gateway until 15:00.")


def _workers(now):
    """Three workers; two of them run jobs, and one was stopped by a deploy."""
    for number, (host, queues) in enumerate([("web-1", "*"), ("web-2", "*"), ("batch-1", "imports,reports,media")]):
        Worker.objects.create(
            name=f"{host}:{211 + number}:5f0c2a9{number}/1.1", host=host, pid=211 + number, supervisor_pid=200 + number,
            boot_id=f"5f0c2a9{number}", queues=queues, concurrency=8, version=VERSION,
            started_at=now - timedelta(hours=9, minutes=number), heartbeat_at=UtcNow(), heartbeat_seconds=15.0,
            clock_ahead_seconds=0.0, rss_bytes=(86 + 41 * number) * 2**20,
        )  # fmt: skip
    Worker.objects.create(
        name="web-1:97:b1d74c03/1.1", host="web-1", pid=97, supervisor_pid=90, boot_id="b1d74c03", queues="*",
        concurrency=8, version=VERSION, started_at=now - timedelta(days=1), heartbeat_at=now - timedelta(hours=9),
        stopped_at=now - timedelta(hours=9), stop_reason="SIGTERM",
    )  # fmt: skip


def _last_minute():
    """Jobs that have just run or run now, so that the list begins with them."""
    web, batch = "web-2:212:5f0c2a91/1.1", "batch-1:213:5f0c2a92/1.1"
    for number in range(3):
        ack(_claimed(tasks.send_receipt, (7390 + number, f"customer-{number}@mail.example"), web), result="sent")
    _fail(tasks.send_receipt, (7393, "customer-8@slow.example"), web, delay_seconds=40)
    _fail(tasks.charge_card, (7394, 72_900), web, delay_seconds=5)
    ack(_claimed(tasks.charge_card, (7395, 4_990), web), result="paid 49.90 EUR")
    _claimed(tasks.resize_picture, ("lamp-7400.jpg", 3000, 2000), batch)
    _claimed(tasks.charge_card, (7401, 12_900), web)


def _fail(task, args, worker, delay_seconds):
    """A job whose first attempt has failed, with the traceback of its task."""
    lease = _claimed(task, args, worker)
    try:
        task.func(*args)
    except Exception as error:
        fail(lease, error=error, delay_seconds=delay_seconds)


def _claimed(task, args, worker):
    """The lease of a new job, which a worker claims before those that wait already."""
    job_id = int(task.using(priority=100).enqueue(*args).id)
    (lease,) = claim(task.queue_name, worker=worker, lease_seconds=3600)
    Job.objects.filter(pk=job_id).update(priority=task.priority)
    return lease


def _statistics(now):
    """A row for each task and minute of a day: busy at noon, quiet at night, and an outage of the mail server."""
    dice, minute = random.Random(7), now.replace(second=0, microsecond=0)
    rows = []
    for ago in range(1, HISTORY_MINUTES):
        begins_at = minute - timedelta(minutes=ago)
        busy = 0.55 + 0.45 * math.cos(ago / HISTORY_MINUTES * 2 * math.pi)
        for number, (task, rate) in enumerate(RATES.items()):
            outage = task is tasks.send_receipt and 35 <= ago <= 55
            rows.append(_minute(task, begins_at, busy, rate, outage, dice, f"{ago}-{number}"))
    write(rows)


def _minute(task, begins_at, busy, rate, outage, dice, name):
    runs, waited, ran, retried, dead = rate
    count = max(1, round(runs * busy * dice.uniform(0.8, 1.2)))
    slow = dice.uniform(0.7, 1.6) * (8 if outage else 1)
    failed, died = round(count * (0.6 if outage else retried)), round(count * dead * dice.uniform(0, 2))
    return JobStat(
        id=name.encode().ljust(16, b"."), span=JobStat.Span.MINUTE, begins_at=begins_at, queue=task.queue_name,
        task=task.module_path, done=count - failed, retried=failed, dead=died, runs=count,
        wait_us=round(count * waited * slow * 1e6), wait_us_max=round(4 * waited * slow * 1e6),
        run_us=round(count * ran * slow * 1e6), run_us_max=round(3 * ran * slow * 1e6),
        wait_times=_spread(count, waited * slow), run_times=_spread(count, ran * slow),
    )  # fmt: skip


def _spread(count, seconds):
    """A histogram: most runs about the mean, a few three times as long."""
    long = count // 12
    found = {str(bucket_of(seconds)): count - long}
    if long:
        place = str(bucket_of(3 * seconds))
        found[place] = found.get(place, 0) + long
    return found


def _workflow():
    """The month's accounts: two imports, then a report of each day, then the mail."""
    month = workflow("accounts of October")
    prices = [
        month.add(tasks.import_prices, supplier, 900, name=f"prices of {supplier}") for supplier in ("lumen", "sol")
    ]
    reports = [month.add(tasks.sales_report, f"2026-10-{day:02d}", 60, 250_000, after=prices, name=f"day {day}")
               for day in (29, 30, 31)]  # fmt: skip
    month.add(tasks.send_receipt, 7500, "accounts@shop.example", after=reports, name="mail to accounting")
    month.start()


def _outbox(now):
    with transaction.atomic():
        ids = [
            publish("order.placed", {"order": 7600 + n, "customer": f"customer-{n}"}, f"customer-{n % 5}")
            for n in range(12)
        ]
        ids.append(publish("stock.low", {"product": "lamp", "left": 3}, "lamp"))
    sent = {"lane": None, "due_at": None, "attempts": 1}
    for n, event_id in enumerate(ids[:9]):
        OutboxEvent.objects.filter(pk=event_id).update(**sent, processed_at=now - timedelta(minutes=40 - 4 * n))
    error = "Refused: no queue takes messages with the routing key stock.low (404)"
    OutboxEvent.objects.filter(pk=ids[-1]).update(due_at=None, failed_at=UtcNow(), attempts=25, last_error=error)


def _locks():
    figures = [("lease lock", "import:lumen", 120, 31, 2), ("mutex", "invoice-numbers", 4200, 380, 0),
               ("lease lock", "report:2026-10", 12, 0, 0)]  # fmt: skip
    for number, (kind, key, acquired, contended, failed) in enumerate(figures):
        LockStat.objects.create(
            id=bytes([number]) * 16, kind=kind, lock_key=key, acquired=acquired, contended=contended, failed=failed,
            released=acquired, wait_us=contended * 40_000, wait_us_max=900_000, held_us=acquired * 30_000,
            held_us_max=2_400_000,
        )  # fmt: skip


def _schedules():
    declare("nightly report", tasks.sales_report, ("2026-10-31", 60, 250_000), None, {"cron": "30 2 * * *"}, "code")
    declare("prices of lumen", tasks.import_prices, ("lumen", 900), None, {"every": 900}, "code")
    declare("prices of sol", tasks.import_prices, ("sol", 900), None, {"cron": "15 */4 * * mon-fri"}, "settings")
    versions.announce("default")
    row = Schedule.objects.get(name="prices of lumen")
    ended = (Job.Status.DONE, Job.Status.FAILED)
    jobs = Job.objects.filter(task=tasks.import_prices.module_path, status__in=ended).order_by("-finished_at")[:6]
    for job in jobs:
        ScheduleTick.objects.create(schedule_id=row.pk, tick_at=job.created_at, outcome="fired", job_id=job.pk)
    Schedule.objects.filter(pk=row.pk).update(last_tick_at=jobs[0].created_at, last_job_id=jobs[0].pk)
