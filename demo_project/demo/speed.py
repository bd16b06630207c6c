"""How slow the machine is now, compared with two quiet cores: on a busy one the demo waits longer."""

import os

#: what the demo tells the programs that it starts: the settings have longer spans then
VARIABLE = "DEMO_SLOWNESS"
_measured = 1.0


def note(slowness: float) -> None:
    """From now on the machine is at least so many times slower than a quiet one; also for programs started later."""
    global _measured
    _measured = max(1.0, slowness)
    os.environ[VARIABLE] = f"{_measured:.2f}"


def measured() -> float:
    """The slowness that note() got last, 1.0 before the first call."""
    return _measured


def patient(seconds: float) -> float:
    """What takes `seconds` at most on a quiet machine may take so long on this one now."""
    return seconds * max(_measured, os.getloadavg()[0] / (os.cpu_count() or 1))


def stretched(seconds: float, most: float) -> float:
    """A span of `seconds` on a quiet machine, longer on a slow one, but at most `most`."""
    return min(seconds * _measured, most)
