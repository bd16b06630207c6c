"""For each schema of docs/reference/schemas a command whose output has all lists filled, and what must be there."""

from contextlib import ExitStack, contextmanager

from django.test import override_settings

from jobqueue import enqueue_many
from jobqueue.db.clock import UtcNowPlus
from jobqueue.db.dialect import ErrorKind
from jobqueue.db.retry import Refusal, report_refusal
from jobqueue.dead_letters import note, redrive
from jobqueue.flow import set_limit
from jobqueue.locks import lease_lock
from jobqueue.lockstats import recorder
from tests.alarms.helpers import look_again
from tests.cli.test_keys import kill_head
from tests.cli.test_workers import hold, worker
from tests.dead_letters.test_redrive import dead
from tests.factories import job, make_in_state, make_job, make_jobs
from tests.groups.test_command import failed_workflow, made
from tests.locks.waiting import one_waits
from tests.lockstats.test_lock_activity import count_keys, keep
from tests.retention.helpers import ended
from tests.schedules import foreign
from tests.schedules.helpers import begin
from tests.settings import VENDOR

TASK = "tests.app.tasks.add"
#: schema -> a context that gives the words of a command
EXAMPLES = {}
#: these begin transactions of their own, or other sessions must see what they need
COMMITTED = {"prune", "bench", "locks", "schedules-import"}


def example(*names):
    """Register what gives the words for the schemas `names`; it may be given the name."""

    def register(function):
        for name in names:
            EXAMPLES[name] = contextmanager(function)
        return function

    return register


@example("list", "stats", "explain", "doctor")
def _of_waiting_jobs(name):
    make_job()
    yield [name]


@example("doctor-grants")
def _grants(name):
    yield ["doctor", "--grants", "jobs"]


@example("list-groups")
def _groups_of_failures(name):
    first, _ = dead(2)
    note(job(first).fingerprint, "the card was declined", by="ann")
    yield ["list", "--groups"]


@example("show")
def _a_job_with_attempts(name):
    yield ["show", *dead(1), "--payload"]


@example("retry")
def _retried(name):
    yield ["retry", *dead(1)]


@example("retry-redrive")
def _redriven(name):
    yield ["retry", *dead(2), "--limit", "1", "--rate", "5/s", "--yes"]


@example("redrives", "redrives-stop")
def _redrives(name):
    run = redrive(job_ids=dead(2))
    yield ["redrives", "stop", run.id] if name.endswith("stop") else ["redrives"]


@example("note", "note-print", "note-write")
def _notes(name):
    kind = "0123456789abcdef"
    note(kind, "ask network@", by="ann")
    yield {"note": ["note"], "note-print": ["note", kind], "note-write": ["note", kind, "--text", "x"]}[name]


@example("cancel", "discard", "release")
def _changed(name):
    yield [name, make_in_state("PROCESSING") if name == "release" else make_job()]


@example("enqueue")
def _enqueued(name):
    yield ["enqueue", TASK, "--args", "[1, 2]"]


@example("edit")
def _edited(name):
    yield ["edit", make_job(), "--priority", "3"]


@example("prune")
def _pruned(name):
    ended("DONE", 400)
    yield ["prune", "--yes", "--list", "--sleep", "0"]


@example("groups", "groups-show", "groups-seal", "groups-cancel", "groups-resume")
def _groups(name):
    verb = name.partition("-")[2]
    number = failed_workflow() if verb == "resume" else made()
    yield ["groups", verb, number] if verb else ["groups"]


@example("keys", "keys-resume")
def _keys(name):
    enqueue_many("q", range(2), ordering_key="k")
    kill_head()
    yield ["keys", "resume", "q", "k"] if name.endswith("resume") else ["keys"]


@example("queues", "queues-pause", "queues-resume", "queues-drain", "queues-limit")
def _queues(name):
    verb = name.partition("-")[2]
    with override_settings(JOBQUEUE={"QUEUES": {"mail": {"CONCURRENCY": (1, 4), "MAX_READY": 9}}}):
        set_limit("q", concurrency=3, rate="10/s")
        more = {"pause": ["--reason", "x", "--until", "2h"], "drain": ["--reason", "x"], "limit": ["--rate", "5/s"]}
        yield ["queues", verb, "q", *more.get(verb, ())] if verb else ["queues"]


@example("schedules", "schedules-run", "schedules-enable", "schedules-disable", "schedules-preview")
def _schedules(name):
    verb = name.partition("-")[2]
    begin("tick", every=60)
    yield ["schedules", verb, "tick", *(["--reason", "x"] if verb == "disable" else ())] if verb else ["schedules"]


@example("schedules-import")
def _imported(name):
    with foreign.tables():
        foreign.periodic(1, "hourly", interval=(1, "hours"), queue="other")
        yield ["schedules", "import", "beat", "--dry-run"]


@example("workers")
def _workers(name):
    hold(worker("w:b/1.0"), 2)
    yield ["workers", "--jobs"]


@example("locks")
def _locks(name):
    count_keys("k")
    keep()
    report_refusal(Refusal("ack", ErrorKind.DEADLOCK, True))
    recorder.flush()
    with ExitStack() as stack:
        stack.enter_context(lease_lock("held", 600))
        if VENDOR != "sqlite":
            stack.enter_context(one_waits())
        yield ["locks"]


@example("alarms")
def _alarms(name):
    with override_settings(JOBQUEUE={"ALARMS": {"mail": {"ready": 3}, "WORKERS": {"silent": 1}}}):
        make_jobs(5, "mail")
        worker("w", heartbeat_at=UtcNowPlus(-3600))
        look_again()
        look_again()
        yield ["alarms"]


@example("unrunnable")
def _unrunnable(name):
    make_job(task="app.nowhere")
    yield ["unrunnable"]


@example("bench")
def _bench(name):
    yield ["bench", "--jobs", "3"]


@example("completion")
def _completion(name):
    yield ["completion", "bash"]
