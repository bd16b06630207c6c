"""The monitor's part of stacks on request: it passes requests to children and writes their answers."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence

from jobqueue.maintenance import worker_stacks
from jobqueue.worker.shared.scoreboard import Scoreboard

logger = logging.getLogger("jobqueue.worker")

#: between two looks for requests
INTERVAL_SECONDS = 1.0
#: a child that has not answered for so long executes no Python code
SILENT_SECONDS = 1.5


class StackAnswers:
    """A duty of the housekeeping: one statement each second, and a write for each answer."""

    def __init__(self, scoreboard: Scoreboard, using: str) -> None:
        self._scoreboard, self._using = scoreboard, using
        self._next = 0.0
        #: by index of the child: its name, and when it was asked
        self._asked: dict[int, tuple[str, float]] = {}

    @property
    def due(self) -> bool:
        """Whether there is something to do: a look, or children that were asked."""
        return bool(self._asked) or time.monotonic() >= self._next

    @property
    def waiting(self) -> bool:
        """Whether a child was asked and its answer is not written."""
        return bool(self._asked)

    def work(self, living: Sequence[tuple[int, str]]) -> None:
        """Write the answers that are there, then look for requests to the `living` children, by index and name."""
        self._write()
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + INTERVAL_SECONDS
        known = {name: index for index, name in living}
        for name in worker_stacks.asked([*known], using=self._using) if known else ():
            if (index := known[name]) not in self._asked:
                self._scoreboard.stacks[index].ask()
                self._asked[index] = name, time.monotonic()

    def _write(self) -> None:
        for index, (name, since) in list(self._asked.items()):
            text = self._scoreboard.stacks[index].answer()
            if text is None and time.monotonic() - since < SILENT_SECONDS:
                continue
            content = {"answered": False} if text is None else json.loads(text or b"{}")
            worker_stacks.answer(name, content, using=self._using)
            del self._asked[index]
            logger.debug("told where the threads of %s are", name)
