"""How long tests wait for what must come: on a busy machine they wait longer, they do not fail."""

import os


def patient(seconds: float) -> float:
    """What `seconds` are on this machine at this moment: three times as many, more if its load is higher than that.

    The load is that of the last minute, for each processor.
    """
    return seconds * max(3.0, os.getloadavg()[0] / (os.cpu_count() or 1))
