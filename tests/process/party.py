"""Work of every kind that has no part in other work: what goes on whoever is frozen or holds the rows of others."""

from jobqueue import group, groups
from jobqueue.models import Job, OutboxEvent, Schedule, ScheduleTick
from jobqueue.schedules.declaring import check_terms
from jobqueue.schedules.editing import save
from tests.app import party, tasks
from tests.factories import state
from tests.outbox.helpers import say
from tests.patience import wait_until

#: of workers that are to run it
ENVIRONMENT = {"JOBQUEUE_TEST_PARTY": "yes", "JOBQUEUE_TEST_OUTBOX": '{"RETENTION_SECONDS": 3600}'}


class Party:
    """A queue, keys, a limit, a schedule, a group and events of its own, and work for all of them."""

    def __init__(self, name):
        self.name = name
        self.jobs, self.events, self.groups = [], [], []
        save(
            self.name, tasks.tell_tick, (), {}, check_terms(self.name, every="1s", missed="all"), by="test", using=None
        )
        self.ticks = 0
        self.add()

    def add(self):
        """One more of each kind."""
        plain = tasks.add.using(queue_name=self.name)
        self.jobs += [
            plain.enqueue(1, 2).id,
            plain.using(ordering_key=self.name).enqueue(1, 2).id,
            plain.using(dependency=self.name).enqueue(1, 2).id,
            plain.using(dedupe_key=f"{self.name}-{len(self.jobs)}").enqueue(1, 2).id,
            party.limited.enqueue(self.name).id,
            party.limited.enqueue(self.name).id,
            party.fails_once.using(queue_name=self.name).enqueue().id,
        ]
        with group(self.name, on_done=tasks.group_done.using(queue_name=self.name)) as g:
            g.add(plain, 1, 2)
        self.groups.append(g.id)
        self.events.append(say("fine", self.name, key=self.name))
        self.ticks = self.fired() + 1

    def fired(self):
        """The number of the ticks that have fired."""
        schedule = Schedule.objects.filter(name=self.name).values("pk")
        return ScheduleTick.objects.filter(schedule_id__in=schedule, outcome="fired").count()

    def left(self):
        """What has not ended yet."""
        left = [f"job {job} {state(job)}" for job in self.jobs if state(job) != "DONE"]
        left += [f"group {one}" for one in self.groups if groups.get(one).state != "ended"]
        called = Job.objects.filter(task="tests.app.tasks.group_done", queue=self.name, status=Job.Status.DONE)
        left += ["callbacks"] * (called.count() < len(self.groups))
        left += ["events"] * OutboxEvent.objects.filter(pk__in=self.events, processed_at=None).exists()
        return left + ["schedule"] * (self.fired() < self.ticks)

    def ends(self):
        """Wait for the end of all of it."""
        wait_until(lambda: not self.left(), what=lambda: f"the end of {self.name}, left: {self.left()}")
