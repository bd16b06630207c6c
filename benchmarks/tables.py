"""One Markdown table per measure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Cells = Iterable[Any]


def number(found: Any) -> str:
    """A number as text such as 1,234 or 0.56; a dash for None."""
    if found is None:
        return "-"
    if abs(found) >= 100:
        return f"{found:,.0f}"
    return f"{found:.3g}" if found < 10 else f"{found:.1f}"


def spread(found: dict[str, Any] | None) -> str:
    """A spread as text: median (min-max)."""
    if found is None:
        return "-"
    if found["n"] == 1:
        return number(found["median"])
    return f"{number(found['median'])} ({number(found['min'])}-{number(found['max'])})"


def table(head: Cells, rows: Iterable[Cells]) -> Iterator[str]:
    """A Markdown table."""
    head = list(head)
    yield f"| {' | '.join(map(str, head))} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def enqueue(found: dict[str, Any]) -> Iterator[str]:
    """Single, bulk, and the processor time of single ones."""
    rows = [
        (part, name, spread(entry["per_second"]), spread(entry["ratio"]))
        for part in ("single", "bulk")
        for name, entry in found[part].items()
    ]
    yield from table(("", "who", "jobs/s", "of raw INSERT"), rows)
    cpu = [(name, spread(entry["us"]), spread(entry["ratio"])) for name, entry in found.get("cpu", {}).items()]
    if cpu:
        yield ""
        yield from table(("processor time of the caller, in its transaction", "us", "times raw INSERT"), cpu)


def drain(found: dict[str, Any]) -> Iterator[str]:
    """One row per contestant."""

    def rows() -> Iterator[Cells]:
        for workers, entries in found.items():
            for name, entry in entries.items():
                ratio = spread(entry.get("ratio"))
                against = f"{ratio} of {entry['against']}" if "against" in entry else ""
                ours = f"jobqueue is {spread(entry['ours_is'])} times as fast" if "ours_is" in entry else ""
                yield workers, name, spread(entry["per_second"]), against or ours

    yield from table(("", "who", "jobs/s", "compared, same round"), rows())


def latency(found: dict[str, Any]) -> Iterator[str]:
    """Percentiles."""
    rows = [
        (name, *(number((entry["ms"] or {}).get(p)) for p in ("p50", "p95", "p99")), entry["jobs"])
        for name, entry in found.items()
    ]
    yield from table(("who", "p50 ms", "p95 ms", "p99 ms", "jobs"), rows)


def growth(found: dict[str, Any]) -> Iterator[str]:
    """One row per size."""
    rows = [
        (label, *(cell for who in ("jobqueue", "raw") for cell in _claim(entry[who]))) for label, entry in found.items()
    ]
    head = ("rows", "claim ms", "of the smallest", "finish ms", "raw: claim ms", "of the smallest", "finish ms")
    yield from table(head, rows)


def _claim(entry: dict[str, Any]) -> tuple[str, ...]:
    return spread(entry["claim_ms"]), spread(entry["ratio"]), spread(entry["finish_ms"])


def snapshot(found: dict[str, Any]) -> Iterator[str]:
    """First and last."""
    rows = [(who, number(e["first_ms"]), number(e["last_ms"]), number(e["ratio"])) for who, e in _both(found)]
    yield from table(("who", "first claims, ms", f"after {found['finished']:,} finishes, ms", "last / first"), rows)


def _both(found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((who, found[who]) for who in ("jobqueue", "raw"))


def quarters(course: Sequence[Any]) -> list[Any]:
    """The first value, the last one, and those at each quarter in between."""
    return [course[round(part * (len(course) - 1) / 4)] for part in range(5)]


def resources(found: dict[str, Any]) -> Iterator[str]:
    """Memory and processor."""

    def rows() -> Iterator[Cells]:
        bare = found["bare Django"]["memory_mb"]
        yield "bare Django", f"{bare['pss']} ({bare['rss']})", *["-"] * 5
        for who, entry in _both(found):
            busy = entry["busy"]
            course = busy["course_pss_mb"] or [None]
            yield (
                who,
                f"{busy['memory_mb']['pss']} ({busy['memory_mb']['rss']})",
                busy.get("above_bare_mb", "-"),
                busy.get("largest_above_bare_mb", "-"),
                f"{', '.join(str(at) for at in quarters(course))} over {busy['jobs']:,} jobs",
                number(busy["cpu_s_per_10k"]),
                number(busy["server_cpu_s_per_10k"]),
            )

    head = ("who", "PSS (RSS) MB, all processes", "above bare Django, PSS", "largest process above it, RSS")
    rest = ("PSS MB at the start and after each quarter", "CPU s / 10k jobs", "server CPU s / 10k")
    yield from table(head + rest, rows())


def idle(found: dict[str, Any]) -> Iterator[str]:
    """Worker and reference."""
    rows = [(who, spread(entry["statements_per_s"]), spread(entry["cpu_percent"])) for who, entry in _both(found)]
    yield from table(("who", "statements/s", "CPU %"), rows)


def scaling(found: dict[str, Any]) -> Iterator[str]:
    """One row per number of processes."""

    def rows() -> Iterator[Cells]:
        for count, entry in found.items():
            ours, raw = entry["jobqueue"], entry["raw, 100"]
            both = (spread(ours["per_second"]), spread(raw["per_second"]), spread(ours["ratio"]))
            share = spread(ours["smallest_share"]), spread(ours["deadlocks_per_10k"]), spread(raw["deadlocks_per_10k"])
            yield count, *both, *share

    head = ("processes", "jobs/s", "raw jobs/s", "of raw", "smallest share / fair share")
    yield from table((*head, "deadlocks / 10k", "raw: deadlocks / 10k"), rows())


def locks(found: dict[str, Any]) -> Iterator[str]:
    """One row per contestant."""

    def rows() -> Iterator[Cells]:
        for processes, entries in found.items():
            for name, entry in entries.items():
                against = f"{spread(entry['ratio'])} of {entry['against']}" if "against" in entry else ""
                yield processes, name, spread(entry["per_second"]), against

    yield from table(("", "lock", "acquired and released, per second", "compared, same round"), rows())


def outbox(found: dict[str, Any]) -> Iterator[str]:
    """Publishing and delivery."""
    rows = [
        (part, name, spread(entry["per_second"]), spread(entry["ratio"]))
        for part in ("publish", "deliver")
        for name, entry in found[part].items()
    ]
    yield from table(("", "who", "events/s", "of raw, same round"), rows)


def keys(found: dict[str, Any]) -> Iterator[str]:
    """Enqueue and drain."""
    rows = [
        (part, name, spread(entry["per_second"]), spread(entry["ratio"]))
        for part in ("enqueue", "drain")
        for name, entry in found[part].items()
    ]
    yield from table(("", "ordering keys", "jobs/s", "of those without key, same round"), rows)


#: measure -> title, explanation, function that makes the table
TABLES: dict[str, tuple[str, str, Callable[[dict[str, Any]], Iterator[str]]]] = {
    "enqueue": ("Enqueue", "Every single enqueue is committed; a bulk is 1,000 jobs in one transaction.", enqueue),
    "drain": (
        "Drain",
        "No-op jobs; counted are committed finishes, sampled from the database. *results*: 200 bytes each. "
        "*delayed*: 100,000 jobs of five priorities, due tomorrow, in the same table. Jobs of other queues append "
        "16 bytes to a file, about 2 microseconds; brokers that forget a job when they hand it out count starts.",
        drain,
    ),
    "latency": (
        "Latency",
        "From the return of an enqueue to the start of its job, idle worker, ten a second.",
        latency,
    ),
    "growth": ("Growth", "One claim of 100 jobs, tables of all sizes visited in turn.", growth),
    "snapshot": ("Open snapshot", "The same claim while another session keeps an old snapshot open.", snapshot),
    "resources": ("Memory and processor", "A worker that runs no-op jobs as fast as it can.", resources),
    "idle": (
        "An idle worker",
        "After a minute without work (20 s at size `quick`). Statements are what the server counted (PostgreSQL: "
        "transactions); processor time is that of all its processes, of one processor.",
        idle,
    ),
    "locks": (
        "Locks",
        "Processes that acquire and release one key, all the time, and do nothing in between. A mutex is released by "
        "its commit.",
        locks,
    ),
    "outbox": (
        "Outbox",
        "100 events per commit are published, each by a call of its own; then one relay delivers them to a subscriber "
        "that does nothing, up to 100 per claim. The raw relay claims 100 and marks them as delivered in the same "
        "transaction: no keys, no leases, no attempts, and nothing is called.",
        outbox,
    ),
    "keys": (
        "Ordering keys",
        "Single enqueues, each committed; then one worker drains no-op jobs. *Beside a hot one*: 20,000 jobs of "
        "one more key wait there, are run, too, and not counted.",
        keys,
    ),
    "scaling": ("Scaling", "One queue, one `runworker --processes N` against N reference processes.", scaling),
}
