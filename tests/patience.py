"""How long tests wait for what must come: on a busy machine they wait longer, they do not fail.

There is one way to wait for a condition: wait_until(). A call that must be given a timeout is given patient(). A thread
that keeps others waiting, and is forgotten by a test that fails, keeps them for longer than that: 4 * patient().
"""

import os
import time

#: what nothing takes that tests wait for, on a machine that does nothing else
PATIENCE_SECONDS = 30.0


def patient(seconds: float = PATIENCE_SECONDS) -> float:
    """What `seconds` are on this machine at this moment: five times as many, more if its load is higher than that.

    Who waits gives no number. A number is for a span of the product within which something has to happen, as a lease.
    The load is that of the last minute, for each processor; twice, for it tells of now only when a minute has passed.
    """
    return seconds * max(5.0, 2 * os.getloadavg()[0] / (os.cpu_count() or 1))


def wait_until(condition, what="the condition"):
    """The first true value of condition(); AssertionError, with `what`, after the longest patient() of this time.

    It is looked at more and more rarely, in the end every 20 ms. `what` is its name, or is called if it has not come
    true, and tells why.
    """
    begun, limit = time.monotonic(), 0.0
    while True:
        if value := condition():
            return value
        waited, limit = time.monotonic() - begun, max(limit, patient())
        assert waited < limit, f"{what() if callable(what) else what} did not come true within {waited:.0f} s"
        time.sleep(min(0.02, 0.001 + waited / 4))
