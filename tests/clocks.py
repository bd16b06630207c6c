"""Clocks that tests set."""


class Clock:
    """A clock that goes when told to; call it for its time in seconds."""

    def __init__(self, now=1000.0):
        self.now = now

    def __call__(self):
        return self.now

    def go(self, seconds):
        """Let so much time pass."""
        self.now += seconds
