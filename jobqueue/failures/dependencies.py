"""Outside services by name: @task(dependency=...) and JOBQUEUE["DEPENDENCIES"]."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from jobqueue.base.durations import to_seconds
from jobqueue.base.validation import check_int, did_you_mean
from jobqueue.exceptions import InvalidType, InvalidValue

NAME_BYTES = 64


@dataclass(frozen=True, slots=True)
class DependencySettings:
    """JOBQUEUE["DEPENDENCIES"][name]: when its circuit breaker opens, and which share of its runs may be retries."""

    failures: int = 5  # so many failures, and no success,
    within: float = 10.0  # in so many seconds open the breaker
    probe: float = 1.0  # seconds between the probes of an open breaker
    retry_share: float = 0.2  # of the runs that need the service; retries beyond it wait


_DEFAULTS = DependencySettings()
KEYS = tuple(one.name.upper() for one in fields(DependencySettings))


def check_dependency(name: object) -> str:
    """`name` if it can name a service: 1 to 64 bytes of printable text without spaces."""
    if not isinstance(name, str):
        raise InvalidType(f"dependency must be the name of a service, got {type(name).__name__}. Nothing was written.")
    if not 1 <= len(name.encode(errors="replace")) <= NAME_BYTES or not name.isprintable() or " " in name:
        raise InvalidValue(
            f"dependency {name[:80]!r} must be 1 to {NAME_BYTES} bytes of printable text without spaces. Nothing was "
            "written; choose a short name, as 'stripe'."
        )
    return name


def read_dependencies(raw: Mapping[object, object]) -> tuple[dict[str, DependencySettings], list[str]]:
    """JOBQUEUE["DEPENDENCIES"] by name, and a list of what is wrong with it; a wrong value is left at its default."""
    found: dict[str, DependencySettings] = {}
    problems: list[str] = []
    for name, options in raw.items():
        where = f"DEPENDENCIES[{name!r}]"
        try:
            known = check_dependency(name)
        except (InvalidType, InvalidValue) as error:
            problems.append(f"DEPENDENCIES: {str(error).partition('. Nothing')[0]}")
            continue
        if not isinstance(options, Mapping):
            problems.append(f"{where} must be a dict, is {type(options).__name__}")
            continue
        values: dict[str, float] = {}
        for key, value in options.items():
            if key not in KEYS:
                problems.append(f"{where}: unknown key {key!r}{did_you_mean(key, KEYS)}")
                continue
            try:
                values[str(key).lower()] = _value(str(key), value)
            except (InvalidType, InvalidValue) as error:
                problems.append(f"{where}: {str(error).partition('. Nothing')[0]}")
        found[known] = DependencySettings(**values)  # type: ignore[arg-type]
    return found, problems


def settings_of(name: str, known: Mapping[str, DependencySettings]) -> DependencySettings:
    """The settings of a service; the defaults for one that has none."""
    return known.get(name, _DEFAULTS)


def _value(key: str, value: object) -> float:
    if key == "FAILURES":
        return check_int(value, key, 1)
    if key != "RETRY_SHARE":
        return to_seconds(value, key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidType(f"{key} must be a number, is {value!r:.40}")
    if not (math.isfinite(value) and 0 <= value < 1):
        raise InvalidValue(f"{key} must be a share from 0 to below 1, as 0.2 for a fifth of all runs, is {value!r:.40}")
    return float(value)
