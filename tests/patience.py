"""How long tests wait for what must come: on a busy machine they wait longer, they do not fail."""

import os


def patient(seconds: float) -> float:
    """What `seconds` are on this machine at this moment: five times as many, more if its load is higher than that.

    The load is that of the last minute, for each processor; twice, for it tells of now only when a minute has passed.
    """
    return seconds * max(5.0, 2 * os.getloadavg()[0] / (os.cpu_count() or 1))
