"""Print the stacks of all threads to stderr at SIGQUIT."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress


def print_at_sigquit(on_signal: Callable[[int], None] | None = None) -> None:
    """From now on SIGQUIT prints the stack of every thread. Call once, in the main thread.

    A separate thread prints, and holds the GIL meanwhile, so no stack changes; it also works while the main thread
    waits in C. faulthandler.register() reads without the GIL, and can crash the process if a thread runs Python code at
    that moment. A body that holds the GIL in C delays the output.

    The same thread calls on_signal(number) for every signal that has a handler, also while the main thread waits in C
    and its handlers have to wait.
    """
    if not hasattr(signal, "SIGQUIT"):
        return
    signal.signal(signal.SIGQUIT, lambda *_: None)
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        threading.Thread(target=_serve, args=[read, on_signal], name="stack-dump", daemon=True).start()
    except RuntimeError:
        # The system has no room for a thread; this process will end soon, because it needs others.
        return
    # The C handler writes at once, whatever the main thread does: one byte for each signal, its number.
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)


def _serve(pipe: int, on_signal: Callable[[int], None] | None) -> None:
    while numbers := os.read(pipe, 4096):
        if signal.SIGQUIT in numbers:
            # A job may have closed stderr, or nobody reads it.
            with suppress(Exception):
                faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        if on_signal is not None:
            for number in numbers:
                on_signal(number)
