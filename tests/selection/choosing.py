"""Which tests the short run needs so that each statement is sent by enough tests that assert what it does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.selection.statement_map import DATABASES, ENOUGH, Statement, StatementMap, exists, key_of

#: the folders in which a test asserts what a statement did, whatever room sends it; pages, commands and docs do not
KINDS = ("races", "faults")
#: the folders whose tests send what many rooms send, and assert something else
WITHOUT_EFFECT = ("plans", "docs", "bench", "proofs", "admin", "cli", "masking", "own_database")
UNKNOWN_SECONDS = 0.05
#: rooms whose statements are tested in folders of other names
TESTED_IN = {
    "runs": ("bulk_verbs", "dead_letters"),
    "grouping": ("groups",),
    "maintenance": ("retention", "alarms", "gates", "lockstats", "outbox", "stats", "dead_letters", "bulk_verbs"),
    "allocate": ("public",),
    "bulk": ("public",),
    "counter": ("public",),
    "fencing": ("public",),
    "transactions": ("public",),
    "backends": ("tasks",),
    "checks": ("public", "doctor"),
    "lockstats": ("lockstats", "locks"),
}


@dataclass
class Recorded:
    """What one run on a database has seen: the tests that ran, what each sent (shape -> room), and what each cost."""

    ran: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    sent: dict[str, dict[str, str]] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)

    def add(self, other: Recorded) -> None:
        """What another run on the same database has seen, too."""
        self.ran |= other.ran
        self.skipped = (self.skipped | other.skipped) - self.ran
        for test, sent in other.sent.items():
            self.sent.setdefault(test, {}).update(sent)
        for test, seconds in other.cpu_seconds.items():
            self.cpu_seconds[test] = self.cpu_seconds.get(test, 0.0) + seconds


def renewed(old: StatementMap, runs: Mapping[str, Recorded], *, whole: bool) -> StatementMap:
    """The map after these runs. What tests have sent before stays, unless the runs had all tests.

    A test need not send the same each time: some statements depend on what other tests have left in caches.
    """
    new = StatementMap()
    for database in DATABASES:
        run = runs.get(database, Recorded())
        rooms, senders = _senders(StatementMap() if whole else old, database, run)
        if database == "mariadb":
            # The same statement does the same on MySQL, which comes before it.
            on_mysql = {key for key, statement in new.statements.items() if "mysql" in statement.tests}
            senders = {key: tests for key, tests in senders.items() if key not in on_mysql}
        picked = _cover(senders, rooms, run, old, database)
        for key, room in rooms.items():
            statement = new.statements.setdefault(key, Statement(room))
            statement.tests[database] = tuple(sorted(picked.get(key, ())))
    new.tests = _known(StatementMap() if whole else old, runs)
    return new


def _senders(old: StatementMap, database: str, run: Recorded) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Statement -> its room, and -> the tests that send it, in this run or as chosen before."""
    rooms: dict[str, str] = {}
    senders: dict[str, set[str]] = defaultdict(set)
    for test, sent in run.sent.items():
        for text, room in sent.items():
            key = key_of(text)
            rooms[key] = min(room, rooms.get(key, room))
            senders[key].add(test)
    for key, statement in old.statements.items():
        if database in statement.tests:
            left = {test for test in statement.tests[database] if test not in run.skipped and exists(test)}
            if left or not statement.tests[database]:
                rooms.setdefault(key, statement.room)
                senders[key] |= left
    return rooms, senders


def _cover(
    senders: Mapping[str, set[str]], rooms: Mapping[str, str], run: Recorded, old: StatementMap, database: str
) -> dict[str, set[str]]:
    """Statement -> ENOUGH tests. Statements that few tests send come first, and cheap tests that send many."""
    asserting = {key: _asserting(tests, rooms[key]) for key, tests in senders.items()}
    needed_by: dict[str, set[str]] = defaultdict(set)
    for key, tests in asserting.items():
        for test in tests:
            needed_by[test].add(key)
    before = old.chosen(database)
    taken: set[str] = set()
    open_keys = set(asserting)
    picked: dict[str, set[str]] = {}

    def price(test: str) -> tuple[float, str]:
        # One that did not run is as good as one that costs little.
        seconds = 0.01 + (run.cpu_seconds.get(test) or UNKNOWN_SECONDS)
        # A test that was chosen before is kept where another one is not much better, so that the file changes little.
        return seconds * (0.5 if test in before else 1.0) / (1 + len(needed_by[test] & open_keys)), test

    for key in sorted(asserting, key=lambda key: (len(asserting[key]), key)):
        have = sorted(asserting[key] & taken, key=price)[:ENOUGH]
        more = sorted(asserting[key] - taken, key=price)[: ENOUGH - len(have)]
        picked[key] = {*have, *more}
        taken |= picked[key]
        open_keys.discard(key)
    return picked


def folders_of(room: str) -> set[str]:
    """The folders of tests that are about a room of the package."""
    return {room, *TESTED_IN.get(room, ())}


def _asserting(tests: Iterable[str], room: str) -> set[str]:
    """Of these tests those that are about the room; others only where there are not enough of them."""
    tests = set(tests)
    own = {test for test in tests if test.split("/")[0] in folders_of(room)}
    if len(own) >= ENOUGH:
        return own
    others = tests - own
    kinds = {test for test in others if test.split("/")[0] in KINDS}
    plain = {test for test in others if test.split("/")[0] not in WITHOUT_EFFECT}
    if len(own | kinds) >= ENOUGH:
        return own | kinds
    # What walks through pages and commands asserts nothing about a statement: it counts only where nothing else does.
    return own | plain or others


def _known(old: StatementMap, runs: Mapping[str, Recorded]) -> dict[str, tuple[str, ...]]:
    where: dict[str, set[str]] = defaultdict(set)
    for test, databases in filter(lambda known: exists(known[0]), old.tests.items()):
        where[test] |= {name for name in databases if name not in runs or test not in runs[name].skipped}
    for database, run in runs.items():
        for test in run.ran:
            where[test].add(database)
    return {test: tuple(name for name in DATABASES if name in found) for test, found in where.items() if found}
