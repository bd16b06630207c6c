"""Subscribers that misbehave as their event says."""

import ctypes
import os
import signal
import time

from django.db import connection, transaction

from jobqueue.outbox import subscriber
from tests.app import tasks
from tests.app.models import Account


def began(event):
    """One line in the evidence file: began ID ATTEMPT PID."""
    fd = os.open(tasks.LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"began {event.id} {event.attempt} {os.getpid()}\n".encode())
    os.close(fd)


def be_slow(event):
    """Until a file appears: the test decides when it ends."""
    while not os.path.exists(event.payload["gate"]):
        time.sleep(0.01)


def hang(event):
    while True:
        time.sleep(3600)


def hang_deaf(event):
    """As in a driver that waits for an answer: handlers of signals do not run."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    hang(event)


def keep_the_interpreter(event):
    ctypes.PyDLL(None).sleep(3600)


def leave_a_block(event):
    transaction.atomic().__enter__()
    Account.objects.create(owner="leaked")


def turn_autocommit_off(event):
    connection.set_autocommit(False)
    Account.objects.create(owner="leaked")


def begin_by_hand(event):
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
    Account.objects.create(owner="leaked")


def fail_in_a_transaction_by_hand(event):
    begin_by_hand(event)
    raise ValueError("before its COMMIT")


def lock_tables(event):
    with connection.cursor() as cursor:
        cursor.execute("LOCK TABLES testapp_ticket READ")


@subscriber("odd.*")
def odd(event):
    """What the topic says."""
    began(event)
    globals()[event.topic.removeprefix("odd.")](event)


@subscriber("atomic.*", atomic=True)
def odd_in_the_transaction(event):
    """The same, in the transaction that marks the event."""
    began(event)
    Account.objects.create(owner="atomic")
    globals()[event.topic.removeprefix("atomic.")](event)


@subscriber("fine")
def fine(event):
    """Delivered at once."""
    began(event)
