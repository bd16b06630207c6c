"""The section LATEST DETECTED DEADLOCK of SHOW ENGINE INNODB STATUS as a Deadlock."""

from __future__ import annotations

import re
from typing import Any

from jobqueue.db.lock_facts import MYSQL_QUOTES, Deadlock, Party, without_values
from jobqueue.db.lock_facts import marked as _
from jobqueue.db.mysql.innodb_text import MonitorReader

_SECTION = re.compile(r"^LATEST DETECTED DEADLOCK\n-+\n(.*?)(?=^-{3,}\n[A-Z ]+\n-{3,}$|\Z)", re.MULTILINE | re.DOTALL)
_PART = re.compile(r"^\*\*\* ", re.MULTILINE)
_SESSION = re.compile(r"^(?:MySQL|MariaDB) thread id (\d+),.*$", re.MULTILINE)
_TRANSACTION = re.compile(r"^TRANSACTION (\S+?),", re.MULTILINE)
_OWNER = re.compile(r" trx id (\S+) lock")


CUT = _("The server's text was cut short, so it does not tell who was rolled back.")


class _Told:
    """What the text tells of one transaction."""

    def __init__(self) -> None:
        self.transaction = self.statement = ""
        self.session = 0
        self.holds: list[str] = []
        self.waits_for: list[str] = []


def read_deadlock(cursor: Any, status: str) -> Deadlock | None:
    """The report in InnoDB's status; None if there was no deadlock since the server started.

    Both MySQL's form (HOLDS THE LOCK(S)) and MariaDB's (CONFLICTING WITH, which names the other's lock) are read. The
    columns of keys are looked up with `cursor`, because the text has them as bytes.
    """
    section = _SECTION.search(status)
    if section is None:
        return None
    reader = MonitorReader(cursor)
    told: dict[int, _Told] = {}
    conflicts: list[tuple[str, str]] = []
    current, victim = 1, 0
    for part in _PART.split(section[1])[1:]:
        head, _, body = part.partition("\n")
        if found := re.match(r"\((\d+)\) ", head):
            current = int(found[1])
        one = told.setdefault(current, _Told())
        if "TRANSACTION:" in head:
            _read_head(one, body)
        elif "HOLDS THE LOCK" in head:
            one.holds += reader.words(body)
        elif "WAITING FOR" in head:
            one.waits_for += reader.words(body)
        elif "CONFLICTING WITH" in head:
            owners = _OWNER.findall(body)
            conflicts += [(owners[0], words) for words in reader.words(body)] if owners else []
        elif rolled := re.match(r"WE ROLL BACK TRANSACTION \((\d+)\)", head):
            victim = int(rolled[1])
    for owner, words in conflicts:
        for one in told.values():
            if one.transaction == owner and words not in one.holds:
                one.holds.append(words)
    instant = section[1].partition("\n")[0]
    names = " ".join(one.transaction for one in told.values())
    parties = tuple(_party(number, one, victim) for number, one in sorted(told.items()))
    return Deadlock(f"{instant} {names}", parties, "" if victim else CUT)


def _party(number: int, told: _Told, victim: int) -> Party:
    return Party(told.session, told.statement, tuple(told.holds), tuple(told.waits_for), number == victim)


def _read_head(told: _Told, body: str) -> None:
    if found := _TRANSACTION.search(body):
        told.transaction = found[1]
    if found := _SESSION.search(body):
        told.session = int(found[1])
        # What follows the session's line is its statement, over as many lines as it has.
        told.statement = without_values(body[found.end() :], MYSQL_QUOTES)
