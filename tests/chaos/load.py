"""What producers and operators do during a trial. Each is a process of its own, with a seed of its own."""

import random
import time
from datetime import timedelta

from django.db import DatabaseError, InterfaceError, connection, transaction
from django.db.models import F
from django.utils import timezone

from jobqueue import dead_letters, enqueue, enqueue_many, flow, group, workflow
from jobqueue.exceptions import JobQueueError, OutcomeUnknown
from jobqueue.models import Job
from jobqueue.outbox import publish
from jobqueue.transitions import cancel, discard, retry
from tests.chaos import tasks
from tests.chaos.models import Count, Intent
from tests.chaos.notes import note

TROUBLE = (DatabaseError, InterfaceError, JobQueueError)
#: queues whose jobs operators cancel, discard and retry
OPERATED = ("plain", "each")


class Undo(Exception):
    """Roll the transaction back."""


class Producer:
    """Enqueues in transactions, some of which it rolls back, and outside of them."""

    def __init__(self, number, seed):
        self.random, self.last = random.Random(f"producer {number} of {seed}"), number * 1_000_000
        self.asked = []

    def number(self):
        """The next number, which no other call in the trial has."""
        self.last += 1
        self.asked.append(self.last)
        return self.last

    def seconds(self):
        """How long a job runs: most are short."""
        return self.random.choice((0.001, 0.005, 0.02, 0.08, 0.3)) * self.random.random()

    def intend(self, kind, number, result, key="", position=None):
        """Write what the job is meant to do, in the transaction that enqueues it."""
        job = None if result is None else int(getattr(result, "id", result))
        Intent.objects.create(kind=kind, number=number, job=job, key=key, position=position)

    def plain(self):
        """Priorities and delays; queues with limits of their own."""
        number = self.number()
        queue = self.random.choice(("plain", "plain", "each", "limited", "rated-queue"))
        options = {"queue_name": queue, "priority": self.random.choice((0, 0, 0, 5, -3))}
        if self.random.random() < 0.15:
            options["run_after"] = timezone.now() + timedelta(seconds=self.random.uniform(0, 6))
        fails = self.random.choice((0, 0, 0, 0.3))
        result = tasks.effect.using(**options).enqueue(queue, number, self.seconds(), fails)
        self.intend(queue, number, result)

    def many(self):
        """In one call."""
        numbers = [self.number() for _ in range(self.random.randint(2, 30))]
        found = tasks.effect.using(queue_name="plain").enqueue_many([("plain", n, 0.001) for n in numbers])
        for number, result in zip(numbers, found, strict=True):
            self.intend("plain", number, result)

    def keyed(self):
        """In the order of a key. Its position is taken under a row lock, so that it follows the commits."""
        key = f"key{self.random.randrange(6)}"
        for _ in range(self.random.choice((1, 1, 3))):
            number, position = self.number(), self.position(key)
            using = tasks.effect.using(queue_name="keyed", ordering_key=key)
            fails = self.random.choice((0, 0.1))
            result = using.enqueue("keyed", number, self.seconds() / 3, fails, key, position)
            self.intend("keyed", number, result, key, position)

    def position(self, key):
        """The next one of a key."""
        Count.objects.filter(name=key).update(value=F("value") + 1)
        return Count.objects.get(name=key).value

    def slots(self):
        number, key = self.number(), f"slot{self.random.randrange(4)}"
        self.intend("slot", number, tasks.slot.enqueue(number, self.seconds(), key))

    def solo(self):
        number = self.number()
        self.intend("solo", number, tasks.solo.enqueue(number, self.seconds()))

    def rated(self):
        number = self.number()
        self.intend("rated", number, tasks.rated.enqueue(number))

    def expiring(self):
        number = self.number()
        using = tasks.effect.using(queue_name="expiring", expires=timedelta(seconds=self.random.uniform(0, 3)))
        self.intend("expiring", number, using.enqueue("expiring", number, self.seconds(), 0.2))

    def deduped(self):
        """Many calls for each key."""
        number = self.random.randrange(100)
        using = tasks.effect.using(queue_name="dedupe", dedupe_key=f"d{number}")
        self.intend("dedupe", number, using.enqueue("dedupe", number, self.seconds(), 0.05), f"d{number}")

    def counted(self):
        number = self.number()
        self.intend("counted", number, tasks.counted.enqueue(number))

    def locked(self):
        number = self.number()
        self.intend("locked", number, tasks.locked.enqueue(number, f"lock{self.random.randrange(3)}", self.seconds()))

    def coroutine(self):
        number = self.number()
        self.intend("coroutine", number, tasks.coroutine.enqueue(number))

    def doomed(self):
        number = self.number()
        self.intend("doomed", number, tasks.doomed.enqueue(number))

    def row(self):
        number = self.number()
        self.intend("row", number, enqueue("rows", {"number": number}))

    def sql_row(self):
        """As a program does that knows only SQL."""
        number = self.number()
        with connection.cursor() as cursor:
            payload = f'{{"number": {number}}}'
            cursor.execute("INSERT INTO job_queue (queue, payload) VALUES ('rows', %s)", [payload])
        self.intend("sql row", number, None)

    def grouped(self):
        bad = self.random.random() < 0.3
        callbacks = {"on_success": tasks.on_success, "on_failure": tasks.on_failure, "on_done": tasks.on_done}
        with group("g", **callbacks) as g:
            for _ in range(self.random.randint(1, 6)):
                g.add(tasks.member, self.number(), self.seconds(), self.random.choice((0, 0.2)))
            if bad:
                g.add(tasks.bad_member, self.number())
        self.intend("group", g.id, None)

    def flow(self):
        callbacks = {"on_success": tasks.on_success, "on_failure": tasks.on_failure, "on_done": tasks.on_done}
        w = workflow("w", if_failed=self.random.choice(("cancel", "continue")), **callbacks)
        first = w.add(tasks.member, self.number(), self.seconds(), 0.1)
        middle = [w.add(tasks.member, self.number(), self.seconds(), 0.1, after=[first]) for _ in range(2)]
        if self.random.random() < 0.3:
            middle.append(w.add(tasks.bad_member, self.number(), after=[first]))
        w.add(tasks.member, self.number(), 0.001, 0, after=middle)
        self.intend("group", w.start(), None)

    def event(self):
        number = self.number()
        if self.random.random() < 0.2:
            publish("chaos.moved", {"number": number})
            self.intend("event", number, None)
            return
        key = f"event{self.random.randrange(5)}"
        publish("chaos.moved", {"number": number}, key=key)
        self.intend("event", number, None, key, self.position(key))

    def alone(self):
        """Outside of a transaction: what the call itself says of its outcome."""
        number, how = self.number(), self.random.choice(("raw", "task", "key", "many"))
        using = tasks.effect.using(queue_name="alone")
        calls = {
            "raw": lambda: enqueue("rows", {"number": number}),
            "task": lambda: using.enqueue("alone", number, 0.001),
            "key": lambda: using.using(dedupe_key=f"alone{number}").enqueue("alone", number, 0.001),
            "many": lambda: enqueue_many("rows", [{"number": number}] * 3),
        }
        try:
            calls[how]()
        except OutcomeUnknown:
            outcome = "unknown"
        except TROUBLE as error:
            outcome = f"{type(error).__name__}: {error}"[:200]
        else:
            outcome = "ok"
        note("alone", number=number, rows=3 if how == "many" else 1, outcome=outcome)

    def unique(self):
        """A run must begin after it, whether it has added a job or found one that waits."""
        key, asked = f"u{self.random.randrange(3)}", time.time()
        result = tasks.unique.using(dedupe_key=key).enqueue(key)
        note("unique", job=int(result.id), asked=asked)

    #: with weights; all but the last two in a transaction
    WITHIN = {
        plain: 10, many: 2, keyed: 6, slots: 4, solo: 2, rated: 3, expiring: 3, deduped: 4, counted: 3, locked: 3,
        coroutine: 1, doomed: 1, row: 3, sql_row: 2, grouped: 1, flow: 1, event: 7,
    }  # fmt: skip

    def step(self):
        """One call, or one transaction."""
        self.asked = []
        chance = self.random.random()
        if chance < 0.18:
            (self.alone if chance < 0.12 else self.unique)()
            return
        chosen = self.random.choices(list(self.WITHIN), list(self.WITHIN.values()), k=self.random.choice((1, 1, 2)))
        with transaction.atomic():
            for call in chosen:
                call(self)
            if self.random.random() < 0.06:
                raise Undo
        note("committed", numbers=self.asked, calls=[call.__name__ for call in chosen])


def produce(number, seconds, seed):
    """Enqueue for so long."""
    producer = Producer(number, seed)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            producer.step()
        except Undo:
            note("undone", numbers=producer.asked)
        except TROUBLE as error:
            _note_trouble(error)
        time.sleep(producer.random.uniform(0, 0.12))


class Operator:
    """Verbs on single jobs, pauses, limits and redrives."""

    def __init__(self, seed):
        self.random = random.Random(f"operator of {seed}")

    def verb(self):
        found = Job.objects.filter(queue__in=OPERATED).exclude(status=2).order_by("-pk")
        if ids := list(found.values_list("pk", flat=True)[:200]):
            verb, job = self.random.choice((cancel, cancel, discard, retry)), self.random.choice(ids)
            # Before it is known whether it is committed.
            note("verb", verb=verb.__name__, job=job)
            verb(job)

    def priority(self):
        found = list(Job.objects.filter(queue__in=OPERATED, status=0).values_list("pk", flat=True)[:200])
        some = self.random.sample(found, min(5, len(found)))
        Job.objects.filter(pk__in=some, status=0).update(priority=self.random.randint(-5, 5))

    def pause(self):
        flow.pause("plain", reason="chaos")
        since = time.time()
        time.sleep(3)
        until = time.time()
        flow.resume("plain")
        note("pause", since=since, until=until)

    def limit(self):
        flow.set_limit("solo", task="tests.chaos.tasks.solo", concurrency=1)
        time.sleep(2)
        flow.clear_limit("solo", task="tests.chaos.tasks.solo")

    def redrive(self):
        dead_letters.redrive(queue="doomed", rate=self.random.choice((None, "20/s")))

    CALLS = {verb: 20, priority: 6, pause: 1, limit: 1, redrive: 2}


def operate(seconds, seed):
    """Do something now and then for so long."""
    operator = Operator(seed)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            operator.random.choices(list(Operator.CALLS), list(Operator.CALLS.values()))[0](operator)
        except TROUBLE as error:
            _note_trouble(error)
        time.sleep(operator.random.uniform(0, 0.4))


def _note_trouble(error):
    note("trouble", error=f"{type(error).__name__}: {error}"[:200])
    connection.close()
    time.sleep(0.1)
