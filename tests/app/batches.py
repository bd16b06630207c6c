"""A batch handler that does what its rows say, and tells of each start."""

import os
import time

from django.db import transaction

from jobqueue import handler
from jobqueue.transitions import ack_many
from tests.app import tasks
from tests.app.models import Account


def note(event, leases):
    """A line for each lease in the evidence file, with the size of the call at its end."""
    lines = [f"{event} {os.getpid()} {i.job_id} {i.attempt} {i.fence} {len(leases)}\n" for i in leases]
    fd = os.open(tasks.LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, "".join(lines).encode())
    os.close(fd)


@handler("loads", batch=100)
def load(leases):
    note("start", leases)
    ack_many([lease for lease in leases if lease.payload.get("ack")])
    for lease in leases:
        if lease.payload.get("die"):
            os._exit(9)
        while (gate := lease.payload.get("gate")) and not os.path.exists(gate):
            time.sleep(0.01)
    note("effect", leases)


@handler("payments", batch=50)
def pay(leases):
    """The acks and the effect of all, rows of this database, are one commit; a poison row kills in the middle of it."""
    note("start", leases)
    with transaction.atomic():
        lost = ack_many(leases)
        mine = [lease for lease in leases if lease not in lost]
        Account.objects.bulk_create(Account(owner=str(lease.payload["n"]), balance=1) for lease in mine)
        if any(lease.payload.get("die") for lease in leases):
            os._exit(9)
