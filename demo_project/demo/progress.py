"""Progress as a bar that moves on a terminal; a file or a pipe gets what is said, and a line when nothing was."""

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import OutputWrapper

from demo_project.demo.giving_up import moved
from demo_project.demo.tables import wrapped

WIDTH = 40
TICK_SECONDS = 0.1
#: without a terminal, the progress is printed when no other line came for this long
SILENT_SECONDS = 5.0
SPINNER = "|/-\\"
_CLEAR = "\r\x1b[K"


class Progress:
    """`done` of `total` things. Use it as a context manager: the bar moves while the block runs."""

    def __init__(self, total: int, things: str, out: OutputWrapper) -> None:
        self.total, self.things, self.out = max(1, total), things, out
        self.on_terminal = out.isatty()
        self._done = self._ticks = 0
        self._began = self._told_at = time.monotonic()
        self._drawing = threading.Lock()

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Draw the bar again and again until the block ends; without a terminal, tell the progress now and then."""
        over = threading.Event()
        thread = threading.Thread(target=self._tick, args=(over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            if self.on_terminal:
                self._draw(last=True)

    def show(self, done: int) -> None:
        """The next drawing shows `done` things."""
        self._done = done

    def say(self, text: str) -> None:
        """Write a line above the bar; a long one is wrapped, unless it is a command."""
        moved()
        self._write("\n".join(wrapped(line) for line in text.splitlines()))

    def _write(self, text: str) -> None:
        with self._drawing:
            self._told_at = time.monotonic()
            self.out.write(f"{_CLEAR}{text}" if self.on_terminal else text)
            self.out.flush()

    def _tick(self, over: threading.Event) -> None:
        while not over.wait(TICK_SECONDS):
            if self.on_terminal:
                self._draw()
            elif time.monotonic() - self._told_at >= SILENT_SECONDS:
                self._write(f"... {self._told()}")

    def _draw(self, *, last: bool = False) -> None:
        with self._drawing:
            self._ticks += 1
            self.out.write(_CLEAR + self._line(), ending="\n" if last else "")
            self.out.flush()

    def _line(self) -> str:
        told = f" {self._told()}"
        width = max(5, min(WIDTH, shutil.get_terminal_size().columns - len(told) - 5))
        filled = "#" * (width * min(self._done, self.total) // self.total)
        return f"{SPINNER[self._ticks % len(SPINNER)]} [{filled:<{width}}]{told}"

    def _told(self) -> str:
        return f"{self._done}/{self.total} {self.things}  {time.monotonic() - self._began:.1f} s"
