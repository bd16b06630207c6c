"""Real runworker processes, and what they leave behind."""

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

from django.db import OperationalError, connection

from tests.launch import ROOT, launch
from tests.patience import wait_until
from tests.process.probe import nothing_is_open

# Short are the heartbeats: no lease must run out because a busy machine lets nobody renew it for some seconds. Tests
# of a lease that runs out let it do so by expire(). And no job is to be given back
# because a test was late to open its gate.
SHORT = ("--lease", "20s", "--heartbeat", "0.5s", "--shutdown-timeout", "2h")

# So long that nothing is ever reaped. The heartbeats leave the monitor time to see the server unlock the rows of a dead
# child, see UNLOCKED_SECONDS there.
LONG = ("--lease", "600s", "--heartbeat", "2s")


def command(*arguments, evidence, prefix=(), **environment):
    """A management command on the test database, in a process group of its own, started by the program `prefix`."""
    name = str(connection.settings_dict["NAME"])
    env = {key: value for key, value in os.environ.items() if not key.startswith("JOBQUEUE_WORKER_")}
    env |= {"JOBQUEUE_TEST_NAME": name, "JOBQUEUE_TEST_LOG": str(evidence.path), "PYTHONUNBUFFERED": "1"}
    env |= {"DJANGO_SETTINGS_MODULE": "tests.settings_process", "PYTHONPATH": str(ROOT)} | environment
    return Group([str(argument) for argument in arguments], env, evidence.path.parent, prefix)


class Group:
    """A command with all the processes it forks."""

    count = 0

    def __init__(self, arguments, env, folder, prefix=()):
        Group.count += 1
        self.output = folder / f"output-{Group.count}"
        self.output.touch()
        self.process = launch(arguments, env, self.output, prefix)
        self.pid = self.process.pid

    def text(self):
        """What the command has printed so far."""
        return self.output.read_text(errors="replace")

    def prints(self, words):
        """Wait until it has printed `words`: a log line may come after the change in the database that it tells of."""
        wait_until(lambda: words in self.text(), what=f"the words {words!r}")

    def has_ended(self):
        """Whether the command itself has, whatever it has forked."""
        return self.process.poll() is not None

    def wait(self):
        """Its exit status."""
        try:
            wait_until(self.has_ended, what="the end of the command")
        except AssertionError:
            # Its threads' stacks say where it stands; after them there may be no room for what it said before.
            said = self.text()[-4000:]
            with suppress(ProcessLookupError):
                self.signal(signal.SIGQUIT)
                self._let_speak(2)
                # What jobs have forked or started is not told by the supervisor.
                self._ask_for_stacks()
            raise AssertionError(f"still running:\n{said}\n{self.text()[-12_000:]}") from None
        return self.process.poll()

    def wait_told_again(self, number):
        """Its exit status, after a second signal `number`: two that come before the first is handled are one."""
        # It may end, and be reaped by the process that started it, between a look and the signal.
        with suppress(ProcessLookupError):
            wait_until(lambda: self.has_ended() or self.signal(number), what="the end of the command")
        return self.wait()

    def causes(self, event, what):
        """Wait for `event`; without it, `what` and all that was printed are the failure. At once if the group ends."""
        with suppress(AssertionError):
            wait_until(lambda: event.is_set() or self.has_ended())
        if not event.is_set():
            said = self.text()[-8000:]
            self._ask_for_stacks()
            raise AssertionError(f"{what}:\n{said}\n{self.text()[-12_000:]}")

    def signal(self, number):
        """To the supervisor alone, as an init system does."""
        os.kill(self.pid, number)

    def signal_all(self, number):
        """To every process of the group."""
        os.killpg(self.pid, number)

    def members(self):
        """The ids of all living processes of the group."""
        return [pid for pid, _ in self._stats()]

    def _ask_for_stacks(self):
        for pid in self.members():
            with suppress(ProcessLookupError, FileNotFoundError):
                comm = Path(f"/proc/{pid}/wchan").read_text()
                with self.output.open("a") as sink:
                    sink.write(f"\n== process {pid}, child of {self._parent(pid)}, waits in {comm} ==\n")
                os.kill(pid, signal.SIGUSR2)
                self._let_speak(0.2)
        self._let_speak(1)

    @staticmethod
    def _let_speak(seconds):
        """The test has failed already: leave what hangs the time to say where."""
        time.sleep(seconds)

    @staticmethod
    def _parent(pid):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]

    def freeze(self, *pids):
        """SIGSTOP to these processes, all of the group by default, while none of them is within a transaction.

        What it had locked would stay locked, and whoever is to go on without it would wait for the test.
        """
        wait_until(lambda: self._frozen_cleanly(pids), what="a moment without a transaction")

    def thaw(self, *pids):
        """SIGCONT to the same processes."""
        self._send(signal.SIGCONT, pids)

    def _send(self, number, pids):
        if not pids:
            self.signal_all(number)
        for pid in pids:
            os.kill(pid, number)

    def _frozen_cleanly(self, pids):
        self._send(signal.SIGSTOP, pids)
        wait_until(lambda: all(state == "T" for pid, state in self._stats() if not pids or pid in pids), what="a stop")
        # The others of the group go on, and have transactions too.
        if nothing_is_open(looks=20 if pids else 3):
            return True
        self.thaw(*pids)
        time.sleep(random.uniform(0.05, 0.2))
        return False

    def _stats(self):
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                words = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(words[2]) == self.pid and words[0] != "Z":
                found.append((int(path.parent.name), words[0]))
        return found

    def end(self):
        """Kill what is left, and check that nothing stays behind."""
        if self.members():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        wait_until(lambda: not self.members(), what="the end of all processes")


def kill_sessions():
    """Cut every other connection to the test database; how many there were."""
    name = connection.settings_dict["NAME"]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
                [name],
            )
            return len(cursor.fetchall())
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s AND id <> CONNECTION_ID()", [name])
        ids = [row[0] for row in cursor.fetchall()]
        for number in ids:
            with suppress(OperationalError):  # 1094: it ended by itself meanwhile
                cursor.execute(f"KILL {number}")
        return len(ids)
