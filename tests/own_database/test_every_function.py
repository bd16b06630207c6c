"""Every public function with the queue in a database of its own: there its rows are, or it says why not."""

from contextlib import nullcontext
from importlib import import_module

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import transaction

from jobqueue.counter import ShardedCounter
from jobqueue.exceptions import JobQueueError, WrongDatabase
from tests.app.models import Ticket
from tests.marks import finding
from tests.own_database import walk
from tests.own_database.walk import QUEUE, SHOP, WALK

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", QUEUE, SHOP])
#: packages say what is public by __all__; modules by what they define
PUBLIC = [
    "jobqueue", "jobqueue.transitions", "jobqueue.locks", "jobqueue.idempotency", "jobqueue.outbox",
    "jobqueue.inspect", "jobqueue.testing", "jobqueue.transactions", "jobqueue.allocate", "jobqueue.counter",
    "jobqueue.alarms", "jobqueue.bulk", "jobqueue.fencing", "jobqueue.context.job_context", "jobqueue.doctor",
    "jobqueue.metrics", "jobqueue.otel",
]  # fmt: skip
#: names that touch no database
WITHOUT_DATABASE = {
    "jobqueue.__version__", "jobqueue.handler", "jobqueue.locks.RedisLock", "jobqueue.locks.redis_lock",
    "jobqueue.idempotency.InProgress", "jobqueue.idempotency.KeyReused", "jobqueue.outbox.Destination",
    "jobqueue.outbox.Event", "jobqueue.outbox.subscriber", "jobqueue.inspect.HeldLock", "jobqueue.inspect.LockKind",
    "jobqueue.transactions.OutsideCallWarning", "jobqueue.fencing.FenceField", "jobqueue.fencing.HasFence",
    "jobqueue.fencing.fence_of", "jobqueue.fencing.refuse_newer", "jobqueue.context.job_context.current_job",
    "jobqueue.context.job_context.JobScope", "jobqueue.context.job_context.JobLog",
    "jobqueue.context.job_context.keep_log_lines",
    "jobqueue.doctor.Finding", "jobqueue.doctor.Level", "jobqueue.otel.JobQueueInstrumentor",
}  # fmt: skip
CALLS = sorted(set(WALK.values()), key=lambda call: call.__name__)
each_call = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
#: refused inside a transaction of another database; all others do what own-database.md says: they commit by themselves
REFUSED = {walk.once, walk.idempotent_view, walk.counter, walk.transactions}


def public_names():
    """Of all packages and modules."""
    for path in PUBLIC:
        module = import_module(path)
        names = getattr(module, "__all__", None)
        if names is None:
            names = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == path and n[0] != "_"]
        yield from (f"{path}.{name}" for name in names)


def rows(model, using):
    return model.objects.using(using).count()


def test_the_walk_has_every_public_name():
    assert set(public_names()) == set(WALK) | WITHOUT_DATABASE


@each_call
def test_its_rows_are_in_the_queues_database_and_nowhere_else(call):
    for model in call():
        assert rows(model, QUEUE) > 0, model
    for model in apps.get_app_config("jobqueue").get_models():
        assert rows(model, "default") == 0, model


@each_call
def test_it_does_the_same_in_a_project_without_time_zones(call, settings):
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Seoul"
    for model in call():
        assert rows(model, QUEUE) > 0, model


@pytest.mark.parametrize(
    "call",
    [pytest.param(call, id=call.__name__, marks=[finding("L23")] if call is walk.counter else []) for call in CALLS],
)
def test_in_a_transaction_of_another_database_nothing_is_undone_or_kept_without_a_word(call):
    written = ()
    try:
        with transaction.atomic(using="default"):
            written = call()
            transaction.set_rollback(True, using="default")
    except JobQueueError:
        assert call in REFUSED
    else:
        assert call not in REFUSED
    for model in written:
        assert rows(model, QUEUE) > 0, "committed by itself, as the page says"


def beside_the_rows():
    """Calls that name a database in which the queue's tables are not."""
    from jobqueue import allocate, enqueue, enqueue_many, idempotency, locks, outbox, transitions

    def once():
        with idempotency.once("k", using=SHOP):
            pass

    def take():
        Ticket.objects.using(SHOP).create(number="1")
        free = Ticket.objects.using(SHOP).filter(sold=False)
        allocate.take(free, changes={"sold": True}, request_id="r")

    return {
        "enqueue": lambda: enqueue("q", 1, using=SHOP),
        "enqueue, dedupe_key": lambda: enqueue("q", 1, dedupe_key="d", using=SHOP),
        "enqueue, ordering_key": lambda: enqueue("q", 1, ordering_key="d", using=SHOP),
        "enqueue_many": lambda: enqueue_many("q", [1], using=SHOP),
        "cancel": lambda: transitions.cancel(1, using=SHOP),
        "retry": lambda: transitions.retry(1, using=SHOP),
        "discard": lambda: transitions.discard(1, using=SHOP),
        "edit": lambda: transitions.edit(1, priority=1, using=SHOP),
        "take": take,
        "once": once,
        "claim": lambda: transitions.claim("q", worker="w", using=SHOP),
        "reap": lambda: transitions.reap(using=SHOP),
        "held_by": lambda: transitions.held_by("w", using=SHOP),
        "release_held": lambda: transitions.release_held(1, using=SHOP),
        "extend_held": lambda: transitions.extend_held(1, 60, using=SHOP),
        "resume": lambda: transitions.resume("q", "k", using=SHOP),
        "outbox.retry": lambda: outbox.retry(1, using=SHOP),
        "outbox.skip": lambda: outbox.skip(1, using=SHOP),
        "outbox.discard": lambda: outbox.discard(1, using=SHOP),
        "lease_lock": lambda: locks.lease_lock("k", 60, 0, using=SHOP).acquire(),
        "mutex": lambda: locks.mutex("k", using=SHOP),
        "mutex, timeout": lambda: locks.mutex("k", timeout_seconds=1, using=SHOP),
        "publish": lambda: outbox.publish("t", 1, using=SHOP),
        "publish, key": lambda: outbox.publish("t", 1, key="k", using=SHOP),
        "counter": lambda: ShardedCounter("c", using=SHOP).add(),
        "counter, value": lambda: ShardedCounter("c", using=SHOP).value(),
    }


@finding("L23")
@pytest.mark.parametrize("name", beside_the_rows())
def test_where_the_queues_tables_are_not_it_says_which_one_is_missing_and_where(name):
    commits_alone = name in ("claim", "lease_lock")
    around = nullcontext() if commits_alone else transaction.atomic(using=SHOP)
    with pytest.raises(WrongDatabase, match=r"job_\w+ is not in the database 'shop'.*migrate --database shop"), around:
        beside_the_rows()[name]()
    assert rows(Ticket, SHOP) == 0


def test_the_commands_that_serve_a_database_say_so_as_they_say_that_it_is_away(capsys):
    for command in ("relay_outbox", "reap_leases"):
        with pytest.raises(SystemExit) as ended:
            call_command(command, database=SHOP)
        assert ended.value.code == 3
        assert "is not in the database 'shop'" in "".join(capsys.readouterr())
