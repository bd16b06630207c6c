"""Threads that publish, and remember what their database committed."""

import random
import threading
from collections import defaultdict

from django.db import OperationalError, connections, transaction
from django.db.models import F

from jobqueue.outbox import publish
from tests.app.models import Account

BATCH = 4
REDONE = ("Deadlock", "Lock wait timeout", "database is locked")


class _Undo(Exception):
    """A tenth of the transactions changes its mind."""


class Publishers:
    """Publish `total` events on `keys`. `committed[key]` maps the turn of a commit to the event's id.

    The turn is counted by a row of the host app, locked after the event was published: not the outbox's own evidence.
    """

    def __init__(self, total, keys, threads=4):
        self.keys = keys
        self.committed = defaultdict(dict)
        self.undone = set()
        self._left = total
        self._guard = threading.Lock()
        Account.objects.bulk_create([Account(owner=f"turn {key}") for key in keys])
        Account.objects.bulk_create([Account(owner=key) for key in keys])
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]

    def start(self):
        for thread in self._threads:
            thread.start()

    def join(self, seconds):
        for thread in self._threads:
            thread.join(seconds)
            assert not thread.is_alive(), "a publisher hangs"

    @property
    def left(self):
        return self._left

    def send(self, key, number):
        """Publish within the open transaction; the id."""
        return publish("proof.turn", {"n": number}, key)

    def _work(self):
        try:
            while True:
                with self._guard:
                    count = min(BATCH, self._left)
                    self._left -= count
                if not count:
                    return
                try:
                    # Low to high, as the page says: no deadlocks among ourselves.
                    self._commit(sorted(random.sample(self.keys, count)))
                except OperationalError as error:
                    # But for the first use of a key on MySQL and MariaDB: redone, as retry_transaction would. So is
                    # what has waited too long for a lock: on SQLite whoever is frozen may hold that of the file.
                    if not any(word in str(error) for word in REDONE):
                        raise
                    with self._guard:
                        self._left += count
        finally:
            connections.close_all()

    def _commit(self, chosen):
        undo = random.random() < 0.1
        found = []
        try:
            with transaction.atomic():
                for key in chosen:
                    number = random.getrandbits(50)
                    event_id = self.send(key, number)
                    turns = Account.objects.filter(owner=f"turn {key}")
                    turns.update(balance=F("balance") + 1)
                    found.append((key, turns.get().balance, event_id, number))
                if undo:
                    raise _Undo
        except _Undo:
            # By number: SQLite gives the ids of a rollback to others.
            self.undone.update(number for *_, number in found)
            with self._guard:
                self._left += len(chosen)
            return
        for key, turn, event_id, _ in found:
            self.committed[key][turn] = event_id
