"""Compares what a page says is printed with what is printed: line ends, times, durations and versions may differ."""

from __future__ import annotations

import re

#: what differs from run to run, and what it may be
_VARIABLE = {
    r"\d\d:\d\d:\d\d\.\d{3}": r"\d\d:\d\d:\d\d\.\d{3}",
    r"\d+(?:\.\d+)?(?:ms|s|m)(?: \d+s)?\b": r"[\d.]+(?:ms|s|m)(?: \d+s)?",
    r"[\w.-]+:\d+:[0-9a-f]{8}\b": r"[\w.-]+:\d+:[0-9a-f]{8}",
    r"(?:(?<=jobqueue )|(?<=Django )|(?<=SQLite ))\d+(?:\.\d+)+": r"\d+(?:\.\w+)+",
    r'(?<=File ")/[^"]*/(?=orders/)': r'/[^"]*/',
    r", line \d+,": r", line \d+,",
    r"#\d+\b": r"#\d+",
    r"\bjob \d+\b": r"job \d+",
    # What the backport for Django 5.2 calls InvalidTask is InvalidTaskError there.
    r"django\.tasks\.exceptions\.InvalidTask\b": r"django[._]tasks\.exceptions\.InvalidTask(?:Error)?",
    r"django\.tasks\.": r"django[._]tasks\.",
    # Python marks the place in a line, each version in its own way.
    r"\s+(?:[~^]+\s+)?": r"\s+(?:[~^]+\s+)?",
}
_VARIABLES = re.compile("|".join(f"({found})" for found in _VARIABLE))
_PATTERNS = list(_VARIABLE.values())
#: a line of the page that stands for any number of lines
REST = "..."
#: another thread writes this line, before or after that of the last job
_ANY_TIME = re.compile(r"^.*: nothing is due; leaving\n", re.MULTILINE)


def steady(printed: str) -> str:
    """The output without lines whose place may differ."""
    return _ANY_TIME.sub("", printed)


def pattern(shown: str) -> re.Pattern[str]:
    """What must be found in the output if a page shows this. Lines may be broken at other spaces."""
    parts: list[list[str]] = [[]]
    for line in steady(shown).strip().splitlines():
        if line.strip() == REST:
            parts.append([])
        else:
            parts[-1].append(line)
    return re.compile(".*?".join(_escaped("\n".join(part).strip()) for part in parts), re.DOTALL)


def _escaped(text: str) -> str:
    found, at = "", 0
    for match in _VARIABLES.finditer(text):
        found += re.escape(text[at : match.start()])
        found += _PATTERNS[match.lastindex - 1]
        at = match.end()
    return found + re.escape(text[at:])
