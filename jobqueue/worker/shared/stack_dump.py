"""SIGQUIT: all threads of this process, on stderr."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress


def print_at_sigquit(on_signal: Callable[[int], None] | None = None) -> None:
    """From now on SIGQUIT prints what every thread is doing. Call once, in the main thread.

    on_signal(number) is called for every other signal that has a handler, by that thread: also while the main thread
    waits in C and its handlers must wait too.

    Printed by a thread of its own, which holds the GIL while it looks: nobody's stack moves meanwhile, and a main
    thread that waits in C is no obstacle. faulthandler.register() looks without the GIL, and a thread that runs Python
    code at that moment can make it crash the process. A body that holds the GIL in C delays the answer.
    """
    if not hasattr(signal, "SIGQUIT"):
        return
    signal.signal(signal.SIGQUIT, lambda *_: None)
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        threading.Thread(target=_serve, args=[read, on_signal], name="stack-dump", daemon=True).start()
    except RuntimeError:
        # No room for a thread: a process without its other threads does not live long either.
        return
    # Written by the C handler at once, whatever the main thread does; one byte for each signal, its number.
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)


def _serve(pipe: int, on_signal: Callable[[int], None] | None) -> None:
    while numbers := os.read(pipe, 4096):
        if signal.SIGQUIT in numbers:
            # Closed by a job, or nobody reads it.
            with suppress(Exception):
                faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        if on_signal is not None:
            for number in numbers:
                on_signal(number)
