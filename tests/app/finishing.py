"""Jobs whose effect, rows of this database, must be there exactly once, wherever their work is cut."""

import os
import signal
import time

from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.db.models import F

from jobqueue import task
from tests.app.models import Account
from tests.app.tasks import note
from tests.faults.moments import cut_at


def effect(owner):
    """A row more and a number more: a second time would show in both."""
    Account.objects.create(owner=owner, balance=1)
    Account.objects.filter(owner="all").update(balance=F("balance") + 1)


@task(takes_context=True)
def pays(context, owner):
    """The plain form."""
    with context.finish(result={"paid": owner}):
        effect(owner)


@task(takes_context=True)
def pays_in_blocks(context, owner):
    """Reads and writes before finish(), savepoints within: one kept, one given up."""
    Account.objects.filter(owner="all").exists()
    Account.objects.filter(owner="all").update(fence=F("fence") + 1)
    with context.finish():
        with transaction.atomic():
            effect(owner)
        try:
            with transaction.atomic():
                effect(owner)
                raise KeyError
        except KeyError:
            pass


@task(takes_context=True)
def pays_inside_its_own_transaction(context, owner):
    """finish() as a savepoint: the commit is the job's own."""
    with transaction.atomic():
        Account.objects.select_for_update().get(owner="all")
        with context.finish(result=1):
            effect(owner)


@task(takes_context=True)
async def pays_as_a_coroutine(context, owner):
    """From the loop, in a thread for calls."""

    def write():
        with context.finish(result=owner):
            effect(owner)

    await sync_to_async(write)()


@task(takes_context=True)
def pays_too_early(context, owner):
    """Wrong: the effect is a commit of its own."""
    effect(owner)
    with context.finish():
        pass


@task(takes_context=True)
def pays_and_dies(context, owner, moment, flag):
    """The first run is killed at this moment of its own work with the database."""
    if os.path.exists(flag):
        return pays.func(context, owner)
    open(flag, "w").close()
    # Children that live for less than a second are replaced more and more slowly.
    time.sleep(1.05)
    connection.ensure_connection()

    def die(*_):
        note("killed", owner, moment)
        os.kill(os.getpid(), signal.SIGKILL)

    with cut_at(moment, die):
        return pays.func(context, owner)
