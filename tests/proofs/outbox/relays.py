"""Real relay_outbox processes, killed and paused."""

import os
import random
import signal
import threading
import time

from django.db import connection, connections

from jobqueue.models import OutboxEvent
from tests.launch import ROOT, launch
from tests.patience import patient

LEASE_SECONDS = 2.0


class Relays:
    """Some relays side by side; a killed one is replaced."""

    def __init__(self, folder, count, **env):
        self.evidence, self._log = folder / "evidence", folder / "relays.log"
        self._env = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.proofs.outbox.settings",
            "JOBQUEUE_TEST_NAME": str(connection.settings_dict["NAME"]),
            "JOBQUEUE_TEST_LOG": str(self.evidence),
            "PYTHONPATH": str(ROOT),
            **env,
        }
        self.kills = self.pauses = 0
        self._ending = threading.Event()
        self._running = [self._start() for _ in range(count)]

    def _start(self):
        return launch(["relay_outbox", "--interval", "50ms", "-v", "0"], self._env, self._log)

    @property
    def processes(self):
        """Those that run."""
        return list(self._running)

    def kill_one(self):
        """SIGKILL, wherever it is, and a new one in its place."""
        place = random.randrange(len(self._running))
        victim = self._running[place]
        victim.kill()
        victim.wait()
        self.kills += 1
        self._running[place] = self._start()

    def pause_one(self):
        """SIGSTOP for longer than the lease."""
        victim = random.choice(self._running)
        victim.send_signal(signal.SIGSTOP)
        time.sleep(LEASE_SECONDS + 0.5)
        victim.send_signal(signal.SIGCONT)
        self.pauses += 1

    def trouble(self, every_seconds):
        """Kill and pause until calm()."""
        while not self._ending.wait(every_seconds):
            self._let_them_deliver()
            (self.pause_one if random.random() < 0.3 else self.kill_one)()

    def _let_them_deliver(self):
        """Where that is too short for a new relay to deliver anything, the trouble would go on for ever."""
        delivered, pending = (OutboxEvent.objects.filter(processed_at__isnull=none) for none in (False, True))
        seen = delivered.count()
        try:
            while delivered.count() == seen and pending.exists() and not self._ending.wait(0.1):
                pass
        finally:
            connections.close_all()

    def calm(self):
        """No more trouble."""
        self._ending.set()

    def end(self):
        """SIGTERM; their exit statuses."""
        for relay in self._running:
            relay.send_signal(signal.SIGCONT)
            relay.terminate()
        return [relay.wait(patient(30)) for relay in self._running]

    def kill_all(self):
        """Nothing is left running."""
        self._ending.set()
        for relay in self._running:
            relay.kill()
            relay.wait()

    def lines(self):
        """What subscribers wrote, outside of any database: (event id, key, n)."""
        text = self.evidence.read_text() if self.evidence.exists() else ""
        return [(int(words[1]), words[2], int(words[3])) for line in text.splitlines() if (words := line.split())]

    def output(self):
        """What the processes logged."""
        return self._log.read_text(errors="replace")
