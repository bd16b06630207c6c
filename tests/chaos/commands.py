"""The processes of a trial: they are killed, end when they are told to, and are started again."""

import re
import signal
import time
from contextlib import suppress

from tests.patience import patient
from tests.process.harness import command

#: an ordered end may take so long, whatever is broken meanwhile
END_SECONDS = 60
#: the exit status of a command that cannot begin
NO_DATABASE = 3
#: and that of a worker whose monitor was killed before it was ready
UNREADY = 1


class Command:
    """A management command that is started again whenever it has ended."""

    def __init__(self, trial, arguments, *, again=True):
        self._trial, self._arguments, self._again = trial, arguments, again
        self.name = " ".join(arguments)
        self.groups = []
        self.start()

    def start(self):
        """Start it, or start it again."""
        self.group = command(*self._arguments, evidence=self._trial.log, **self._trial.environment)
        self.groups.append(self.group)
        self._began, self._expected, self._told, self._starts_at = time.monotonic(), {0}, None, None

    def killed(self):
        """Expect that it ends by SIGKILL."""
        self._expected = self._expected | {-signal.SIGKILL}

    def child_killed(self):
        """One of its processes is killed: a worker that is not ready yet ends if that was its monitor."""
        if self._is_young():
            self._expected = self._expected | {UNREADY}

    def terminated(self):
        """Tell it to end in order."""
        if not self.group.has_ended():
            if self._told:
                # The second time it does not wait for its jobs.
                self._expected = self._expected | {128 + signal.SIGTERM}
            self._told = time.monotonic()
            if self._is_young():
                # Python has not come to the handler yet.
                self._expected = self._expected | {-signal.SIGTERM}
            with suppress(ProcessLookupError):
                self.group.signal(signal.SIGTERM)

    def _is_young(self):
        return time.monotonic() - self._began < patient(1.0)

    def look(self):
        """Start it again if it has ended; how it ended, or that it does not, may be a violation."""
        if not self.group.has_ended():
            if self._told and time.monotonic() - self._told > patient(END_SECONDS):
                self._trial.violation(f"{self.name} has not ended {END_SECONDS} s after SIGTERM", self.said())
                self._told = None
            return
        if self._starts_at is None:
            self._judge()
            self._starts_at = time.monotonic() + self._trial.random.uniform(0, 3)
        if self._again and time.monotonic() > self._starts_at:
            self.start()

    def finish(self):
        """The end of the trial: SIGTERM, its exit status, and nothing that stays behind."""
        self.terminated()
        self.group.wait()
        if self._starts_at is None:
            self._judge()
        for group in self.groups:
            group.end()

    def said(self):
        """The end of its output."""
        return self.group.text()[-3000:]

    def _judge(self):
        status = self.group.process.poll()
        # The error of PostgreSQL has several lines.
        if status == NO_DATABASE and re.match(r"[^\n]* cannot be (reached|read): ", self.group.text()):
            # It was started while the database was away, and has said nothing else.
            return
        by_itself = self._told is None and self._again and status == 0
        if status not in self._expected or by_itself:
            self._trial.violation(f"{self.name} ended by itself with status {status}", self.said())
