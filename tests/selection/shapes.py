"""The shape of a statement: the same for all values, lengths of lists, quotes and names that a test makes up."""

from __future__ import annotations

import re
from functools import lru_cache

#: what Django and the servers do around a statement; not worth a line
_CONTROL = re.compile(r"(BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE)\b", re.IGNORECASE)
_STEPS = [
    (re.compile(r"\s+"), " "),
    # How a value is passed depends on its bytes: jobqueue.db.parameters.placeholder().
    (re.compile(r"CONVERT\(UNHEX\(%s\) USING utf8mb4\)|UNHEX\(%s\)"), "%s"),
    (re.compile(r"'(?:[^'\\]|''|\\.)*'"), "?"),
    (re.compile(r"[`\"]"), ""),
    (re.compile(r"%s|(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?\b"), "?"),
    # Django 5.2 writes NULL where 6.x has a parameter.
    (re.compile(r"= NULL\b"), "= ?"),
    (re.compile(r"(?<=[=<>+(] )\(\?\)|(?<=\()\(\?\)"), "?"),
    # Names that a test makes up, and the numbers of aliases: t1, U0.
    (re.compile(r"\b[0-9a-fA-F]*\d[0-9a-fA-F]{7,}\b|(?<=_)[0-9a-f]{8,}\b"), "#"),
    (re.compile(r"\b([A-Za-z]|col|place)\d+\b"), r"\1#"),
    (re.compile(r"(?:\?|\bNULL\b)(?:, ?(?:\?|\bNULL\b))+"), "?"),
]
#: a part and its repetitions, joined by a comma or a word; inner parts before those around them
_JOINED = r"(?:, ?| (?:OR|AND|UNION ALL|UNION) )"
_NESTED = r"[^()]"
for _ in range(4):
    _NESTED = rf"[^()]|\((?:{_NESTED})*+\)"
_REPEATED = [
    re.compile(r"(\([^()]*\))(?:, ?\1)+"),
    re.compile(r"((?:WHEN) .{1,300}? THEN [^ ]+)(?: \1)+"),
    re.compile(rf"(\((?:{_NESTED})*+\))(?:{_JOINED}\1)+"),
    re.compile(r"(SELECT (?:(?!UNION).){1,4000}?)(?: UNION ALL \1)+(?=$|\))"),
]


@lru_cache(maxsize=20_000)
def shape(sql: str) -> str:
    """The shape of a statement; the empty text for BEGIN, COMMIT and savepoints."""
    text = sql.strip()
    if _CONTROL.match(text):
        return ""
    for pattern, replacement in _STEPS:
        text = pattern.sub(replacement, text)
    for _ in range(4):
        before = text
        for pattern in _REPEATED:
            text = pattern.sub(r"\1", text)
        if text == before:
            break
    return text
