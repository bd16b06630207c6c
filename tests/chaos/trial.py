"""One seed on one database: load, faults, calm, and the judgement."""

import random
import re
import threading
import time
from collections import Counter
from contextlib import suppress
from os import environ
from types import SimpleNamespace

from django.db import DatabaseError, InterfaceError, connection, connections
from django.db.models import Count as CountOf

from jobqueue import dead_letters, flow, schedules
from jobqueue.exceptions import JobQueueError
from jobqueue.models import GroupMember, Job, JobGroup, OutboxEvent
from tests.chaos import checks, faults, notes, tasks
from tests.chaos.commands import Command
from tests.chaos.faults import LEASE_SECONDS
from tests.chaos.models import Count, Effect, Intent
from tests.chaos.weather import Weather
from tests.patience import patient, wait_until
from tests.proofs import audit
from tests.servers import control
from tests.settings import VENDOR

TROUBLE = (DatabaseError, InterfaceError, JobQueueError)
SHORT = ("--lease", f"{LEASE_SECONDS}s", "--shutdown-timeout", "5s")
WORKERS = (
    ("--processes", "2", "--concurrency", "3"),
    ("--concurrency", "4", "--recycle-jobs", "150"),
    ("--concurrency", "2", "--batch-size", "50"),
)
PRODUCERS = 2
#: while nothing moves for so long, nothing will
STUCK_SECONDS = 60
#: docs/explanation/guarantees.md, how long recovery takes: a lease and 2 s
RECOVERY_SECONDS = LEASE_SECONDS + 2
#: at most so many leases at a time: by queue, or by a column of it
LIMITS = (("limited", "queue", 3), ("slots", "concurrency_key", 2), ("solo", "queue", 2), ("keyed", "ordering_key", 1))
SESSIONS = {
    "postgres": "SELECT pid FROM pg_stat_activity WHERE datname = '{}' AND pid <> pg_backend_pid()",
    "mysql": "SELECT processlist_id FROM performance_schema.threads"
    " WHERE processlist_db = '{}' AND processlist_id <> CONNECTION_ID()",
    "mariadb": "SELECT id FROM information_schema.processlist WHERE db = '{}' AND id <> CONNECTION_ID()",
}


class Trial:
    """What the faults act on, and what is said about it."""

    def __init__(self, folder, seed, seconds, planned):
        self.seed, self.seconds, self.planned = seed, seconds, planned
        self.random = random.Random(f"trial {seed}")
        self.log = SimpleNamespace(path=folder / "log")
        self.folder, self._journal = folder, (folder / "journal").open("w")
        self._began, self._threads, self._outage = time.monotonic(), [], threading.Lock()
        self.violations, self.counted, self.stops = [], Counter(), []
        self.figures = {}
        self.server = control.load().get(VENDOR) if VENDOR != "sqlite" else None
        self.environment = {
            "DJANGO_SETTINGS_MODULE": "tests.chaos.settings",
            "JOBQUEUE_CHAOS_CONN_MAX_AGE": self.random.choice(("0", "60")),
        }
        self.proxy = self._proxied() if VENDOR != "sqlite" else None
        environ[notes.VARIABLE] = str(self.log.path)

    def _proxied(self):
        variable = f"JOBQUEUE_TEST_{VENDOR.upper()}_URL"
        port = int(connection.settings_dict["PORT"])
        proxy = Weather("127.0.0.1", port)
        self.environment[variable] = re.sub(f":{port}/", f":{proxy.port}/", environ[variable])
        return proxy

    def say(self, words):
        """A line of the journal."""
        self._journal.write(f"{time.monotonic() - self._began:7.2f} {words}\n")
        self._journal.flush()

    def violation(self, words, evidence=""):
        """Something that must not happen has happened."""
        self.say(f"VIOLATION {words}\n{evidence}")
        if words not in self.violations:
            self.violations.append(words)

    def run(self):
        """All of it; the violations are in `violations` afterwards."""
        for name in ("counter", "mercy", *(f"key{n}" for n in range(6)), *(f"event{n}" for n in range(5))):
            Count.objects.create(name=name)
        self._start()
        self._began = time.monotonic()
        sampling = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(sampling,))
        sampler.start()
        try:
            self._break_things()
            self._calm_down()
            self._drain()
            if not self.violations:
                self._recover()
        finally:
            sampling.set()
            sampler.join()
            self._end()
        for found in checks.violations(self._evidence()):
            self.violation(found)
        self._look_for_leftovers()

    def _start(self):
        self.workers = [Command(self, ("runworker", *SHORT, *options)) for options in WORKERS]
        self.helpers = [
            Command(self, ("relay_outbox",)),
            Command(self, ("reap_leases", "--interval", "1s")),
            *(self._load("produce", "--number", str(n + 1)) for n in range(PRODUCERS)),
            self._load("operate"),
        ]
        wait_until(
            lambda: len({line["pid"] for line in notes.read(self.log.path)}) > PRODUCERS + 2, what="the first starts"
        )

    def _load(self, role, *options):
        return Command(self, ("chaos", role, str(self.seconds), str(self.seed), *options), again=False)

    def _break_things(self):
        waiting = list(self.planned)
        until = self._began + self.seconds
        while time.monotonic() < until:
            while waiting and time.monotonic() - self._began >= waiting[0].at:
                self._bring(waiting.pop(0))
            self._look_after()
            time.sleep(0.02)
        for fault in waiting:
            self.say(f"no time for fault {fault.number}: {fault.kind}")

    def _look_after(self):
        for one in (*self.workers, *self.helpers):
            one.look()

    def _bring(self, fault):
        self.say(f"fault {fault.number}: {fault.kind}")
        try:
            faults.BY_NAME[fault.kind](self, fault)
            self.counted[fault.kind] += 1
        except TROUBLE as error:
            self.say(f"fault {fault.number} was refused: {error}")
            connection.close()

    def after(self, seconds, action):
        """Do it later, in another thread: this one may wait for a server that has to be let go on."""

        def act():
            time.sleep(seconds)
            action()

        self._aside(act)

    def _aside(self, act):
        thread = threading.Thread(target=act)
        thread.start()
        self._threads.append(thread)

    def ask(self, sql):
        """The rows of a statement; none if the server does not run or refuses it."""
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return cursor.fetchall() if cursor.description else []
        except TROUBLE as error:
            self.say(f"{sql[:60]}: {error}")
            connection.close()
            return []

    def sessions(self):
        """The other sessions of this database."""
        return [row[0] for row in self.ask(SESSIONS[VENDOR].format(connection.settings_dict["NAME"]))]

    def hold(self, seconds, work):
        """Call work(cursor) of a session of its own, which ends after some seconds, whatever it has open."""

        def act():
            other = connection.copy()
            try:
                with other.cursor() as cursor:
                    work(cursor)
                    time.sleep(seconds)
            except TROUBLE as error:
                self.say(f"another session: {error}")
            finally:
                other.close()

        self._aside(act)

    def outage(self, end, seconds):
        """End the server, and start it after some seconds; one outage after the other."""

        def away():
            with self._outage:
                begun = time.time()
                end(self.server)
                time.sleep(seconds)
                self.server.start()
                self.stops.append((begun, time.time()))
                self.say("the server is back")

        self._aside(away)

    def freeze_server(self, seconds):
        """Stop the server (SIGSTOP) for so many seconds, if it runs."""

        def frozen():
            with self._outage:
                self.server.pause()
                self.stops.append((time.time(), time.time() + seconds))
                time.sleep(seconds)
                self.server.resume()

        self._aside(frozen)

    def _sample(self, ended):
        """Count leases again and again: each statement sees one instant."""
        looks = 0
        while not ended.wait(0.15):
            try:
                for queue, column, limit in LIMITS:
                    held = Job.objects.filter(queue=queue, status=1).exclude(**{f"{column}__isnull": True})
                    for row in held.values(column).annotate(n=CountOf("pk")).filter(n__gt=limit):
                        self.violation(f"{row['n']} leases of {queue} {row[column]!r} at a time, the limit is {limit}")
                looks += 1
            except TROUBLE:
                connection.close()
        self.figures["looks at limits"] = looks
        connections.close_all()

    def _calm_down(self):
        """End all faults, and let everything that was stopped go on."""
        self.say("calm")
        if self.proxy:
            self.proxy.clear()
        for thread in self._threads:
            thread.join()
        connection.close()
        self.say("the load ends")
        for one in self.helpers[2:]:
            try:
                one.group.wait()
            except AssertionError as error:
                self.violation(f"{one.name} does not end", str(error))

    def _drain(self):
        """Until all jobs have ended; those that failed as they were meant to are redriven first."""
        self.say("the load has ended")
        begun = time.monotonic()
        self._persist(lambda: Count.objects.filter(name="mercy").update(value=1))
        # What an operator has begun who was killed or cut off.
        self._persist(lambda: flow.resume("plain"))
        self._persist(lambda: flow.clear_limit("solo", task="tests.chaos.tasks.solo"))
        self._persist(lambda: schedules.disable("ticks", reason="the end of the trial"))
        left, moved = None, time.monotonic()
        while time.monotonic() - moved < patient(STUCK_SECONDS) / 5:
            self._look_after()
            found = self._left()
            if found != left:
                left, moved = found, time.monotonic()
            if left == (0, 0, 0, 0):
                break
            if left and left[:3] == (0, 0, 0):
                self._persist(lambda: dead_letters.redrive(queue="doomed"))
                time.sleep(1)
            time.sleep(0.2)
        else:
            self.violation(f"nothing has moved for {STUCK_SECONDS} s; jobs, events, groups, failed: {left}")
        self.figures["seconds of draining"] = round(time.monotonic() - begun, 1)

    def _left(self):
        with suppress(*TROUBLE):
            return (
                Job.objects.filter(status__in=(0, 1)).count(),
                OutboxEvent.objects.filter(lane__isnull=False).count(),
                JobGroup.objects.exclude(state=JobGroup.State.ENDED).count(),
                Job.objects.filter(status=3, queue="doomed").count(),
            )

    def _persist(self, action):
        """Carry it out, if need be when an effect of the last faults is over."""

        def attempt():
            self._look_after()
            try:
                action()
                return True
            except TROUBLE as error:
                self.say(f"once more: {error}")
                connection.close()
                return False

        wait_until(attempt, what="a statement after the faults")

    def _recover(self):
        """Kill the whole worker that runs a job, and measure when the job starts again."""
        self.say("all jobs have ended")
        job = int(tasks.probe.enqueue().id)
        start = wait_until(lambda: self._starts_of(job), what="the start of the probe")[0]
        holder = next(one for one in self.workers if start["pid"] in one.group.members())
        holder.killed()
        holder.group.signal_all(9)
        killed = time.time()
        again = wait_until(lambda: self._starts_of(job)[1:], what="the second start of the probe")[0]
        wait_until(lambda: Job.objects.get(pk=job).status == 2, what="the end of the probe")
        took = round(again["at"] - killed, 2)
        self.figures["seconds of recovery"] = took
        # The bound of an idle machine, and what this one may be late.
        if took > RECOVERY_SECONDS + patient(1.0):
            self.violation(f"the job of a killed worker started again after {took} s, the bound is {RECOVERY_SECONDS}")

    def _starts_of(self, job):
        # A worker that the last fault has ended is to be there when the job is free again.
        self._look_after()
        return [line for line in notes.read(self.log.path) if line["event"] == "start" and line["job"] == job]

    def _end(self):
        for thread in self._threads:
            thread.join()
        for one in (*self.workers, *self.helpers):
            try:
                one.finish()
            except AssertionError as error:
                self.violation(f"{one.name} does not end", str(error))
        if self.proxy:
            self.proxy.close()
        connection.close()

    def _evidence(self):
        return checks.Evidence(
            lines=notes.read(self.log.path),
            jobs=Job.objects.in_bulk(),
            edges=audit.edges(),
            effects=list(Effect.objects.order_by("pk")),
            intents=list(Intent.objects.order_by("pk")),
            groups=list(JobGroup.objects.all()),
            members=Counter(GroupMember.objects.values_list("group_id", "state")),
            counts=dict(Count.objects.values_list("name", "value")),
            stops=self.stops,
        )

    def _look_for_leftovers(self):
        """After the last worker: no lease, no lane, no open session."""
        if held := Job.objects.filter(status=1).count():
            self.violation(f"{held} leases are left after the workers")
        if VENDOR != "sqlite":
            with suppress(AssertionError):
                wait_until(lambda: not self.sessions(), what="the end of all sessions")
            if left := self.sessions():
                self.violation(f"{len(left)} sessions are left after the workers")

    def result(self):
        """What is kept of it."""
        lines = notes.read(self.log.path)
        return {
            "database": VENDOR,
            "seed": self.seed,
            "seconds": self.seconds,
            "planned": len(self.planned),
            "faults": sum(self.counted.values()),
            "kinds": dict(sorted(self.counted.items())),
            "jobs": Job.objects.count(),
            "starts": sum(line["event"] == "start" for line in lines),
            "cut": self.proxy.cuts + self.proxy.refused if self.proxy else 0,
            "delivered": sum(line["event"] == "delivered" for line in lines),
            **self.figures,
            "violations": self.violations,
        }
