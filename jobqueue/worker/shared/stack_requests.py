"""Shared memory in which the monitor asks a child where its threads are, and the child answers."""

from __future__ import annotations

import ctypes

#: the longest answer
ANSWER_BYTES = 65_536
#: where the text begins, behind three numbers
_TEXT = 3 * ctypes.sizeof(ctypes.c_int64)


class StackMemory(ctypes.Structure):
    """The last question and the last answer."""

    asked: int
    answered: int
    size: int
    text: bytes

    _fields_ = (
        ("asked", ctypes.c_int64),  # grows with each question
        ("answered", ctypes.c_int64),  # the question that the text answers
        ("size", ctypes.c_int64),
        ("text", ctypes.c_char * ANSWER_BYTES),
    )


class StackRequests:
    """The memory of one child. The monitor calls ask() and answer(), the child the others."""

    def __init__(self, memory: StackMemory) -> None:
        self._memory = memory

    @property
    def question(self) -> int:
        """The number of a question without an answer; 0: there is none."""
        asked = self._memory.asked
        return asked if asked != self._memory.answered else 0

    def ask(self) -> None:
        """Request the stacks of this process again."""
        self._memory.asked += 1

    def write(self, question: int, text: bytes) -> None:
        """Answer a question. `text` has ANSWER_BYTES at most."""
        ctypes.memmove(ctypes.addressof(self._memory) + _TEXT, text, len(text))
        self._memory.size = len(text)
        # Last: from here on the monitor may read it.
        self._memory.answered = question

    def answer(self) -> bytes | None:
        """The answer to the last question; None until it is there."""
        if self.question:
            return None
        return ctypes.string_at(ctypes.addressof(self._memory) + _TEXT, self._memory.size)

    def clear(self) -> None:
        """Forget question and answer, for a new process."""
        self._memory.asked = self._memory.answered = self._memory.size = 0
