"""A program that enqueues jobs at a steady pace."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

from django.db import connections


@contextmanager
def customers(task, url, per_second):
    """So many new jobs in each second, while the block runs."""
    ending = threading.Event()

    def come():
        begun, count = time.monotonic(), 0
        while not ending.wait(0.02):
            # On a machine that is too slow for so many, it is late at each look.
            while count < (time.monotonic() - begun) * per_second and not ending.is_set():
                task.enqueue(url)
                count += 1
        connections.close_all()

    thread = threading.Thread(target=come)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
