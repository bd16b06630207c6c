"""The proxy between the processes of a trial and their database."""

import random
import re
import time

from tests.proxy import CuttingProxy


class Weather(CuttingProxy):
    """Besides cutting answers: silence, slowness, lost requests, and sessions that are turned away."""

    def __init__(self, host, port):
        #: until these instants (monotonic) no byte passes, and no session begins
        self.silent_until = self.closed_until = 0.0
        #: until an instant each answer takes up to so many seconds more
        self.slow_until, self.slow_seconds = 0.0, 0.0
        self._lost, self._losses = re.compile(b"$."), 0
        super().__init__(host, port)

    def lose(self, needle, times):
        """End the sessions of the next requests with this pattern; the server gets nothing of them."""
        self._lost, self._losses = re.compile(needle.encode()), times

    def clear(self):
        """Let everything pass."""
        self.silent_until = self.closed_until = self.slow_until = 0.0
        self._losses = 0
        self.cut("$.", 0)

    def reached(self):
        """None while sessions are turned away."""
        return None if time.monotonic() < self.closed_until else super().reached()

    def answered(self, data):
        """Late, or never."""
        self._endure_silence()
        if time.monotonic() < self.slow_until:
            time.sleep(random.uniform(0, self.slow_seconds))
        return data

    def refuses(self, asked):
        """Whether the request is lost."""
        self._endure_silence()
        if self._losses > 0 and self._lost.search(asked):
            self._losses -= 1
            return True
        return super().refuses(asked)

    def _endure_silence(self):
        """A session whose bytes were withheld ends afterwards, as one does whose packets were lost for too long."""
        if time.monotonic() < self.silent_until:
            while time.monotonic() < self.silent_until:
                time.sleep(0.05)
            raise OSError
