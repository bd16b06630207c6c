"""The glossary's words are the code's words, and words that were given up do not come back (retired.toml)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.test_layers import none_of
from tests.docs.markdown import ROOT, name, table

PACKAGE, DOCS = ROOT / "jobqueue", ROOT / "docs"
GLOSSARY = DOCS / "reference" / "glossary.md"
RETIRED = tomllib.loads(Path(__file__).with_name("retired.toml").read_text())["retired"]
TEXT = {".py", ".md", ".po", ".svg", ".html", ".txt"}
#: a decision record may name each old word once
RECORDS = DOCS / "adr"


def files() -> list[Path]:
    """The files in which no retired word may stand. CHANGELOG and UPGRADING name old words beside new ones."""
    found = [ROOT / page for page in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    for folder in (PACKAGE, DOCS):
        found += [path for path in sorted(folder.rglob("*")) if path.suffix in TEXT and "proof" not in path.parts]
    return found


def parts(text: str) -> str:
    """The text in lower case, with the parts of camelCase names apart."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).lower()


def pattern(entry: dict[str, str], path: Path) -> re.Pattern[str] | None:
    """What to look for in a file; None: the word is retired as a name in code only, and this is no code."""
    if "text" in entry:
        return re.compile(entry["text"])
    word = entry.get("word") or entry["name"]
    spelled = re.escape(word)
    if "name" in entry:
        if path.suffix != ".py":
            return None
        # A part of a name: prose in docstrings and comments may use the word in its ordinary sense.
        spelled = rf"(?:\b\w+_)?{spelled}(?=[_(.=])|_{spelled}\b|\b(?:class|def|import) {spelled}\b"
        return re.compile(spelled)
    return re.compile(rf"(?<![a-z]){spelled}s?(?![a-z])")


def found_in(path: Path) -> Iterator[str]:
    """The retired words of a file, as file:line: word."""
    plain = parts(path.read_text())
    for entry in RETIRED:
        looked_for = pattern(entry, path)
        if looked_for is None:
            continue
        text = plain
        for allowed in entry.get("allowed", ()):
            text = re.sub(allowed, lambda match: "-" * len(match[0]), text)
        hits = list(looked_for.finditer(text))
        if path.is_relative_to(RECORDS) and len(hits) == 1:
            continue
        for hit in hits:
            line = text.count("\n", 0, hit.start()) + 1
            yield f"{name(path)}:{line}: {hit[0]!r}, now {entry['now']!r}"


def glossary() -> list[list[str]]:
    return table(GLOSSARY, "Words")


def test_the_glossary_is_short_and_in_the_order_of_the_alphabet():
    words = [row[0] for row in glossary()]
    assert len(words) <= 40
    assert words == sorted(words, key=str.lower)
    assert len(set(words)) == len(words)


def test_the_words_of_the_glossary_are_in_the_code_and_each_meaning_is_one_sentence():
    sources = [*PACKAGE.rglob("*.py"), *(p for p in (DOCS / "reference").glob("*.md") if p != GLOSSARY)]
    code = "\n".join(parts(path.read_text()) for path in sources)

    def offenders():
        for word, meaning, *field in glossary():
            spelled = re.sub(r"[ -]", r"[ _-]?", re.escape(word).replace(r"\ ", " ").replace(r"\-", "-"))
            if not re.search(rf"(?<![a-z]){spelled}", code, re.IGNORECASE):
                yield f"{word} is not in the code"
            if not re.fullmatch(r"[^.]+(\.[^. ]+)*\.", meaning):
                yield f"the meaning of {word} is not one sentence"
            if len(field) != 3 or not all(field):
                yield f"{word} does not have its three other columns"

    none_of(offenders())


def test_no_retired_word_is_used():
    none_of(found for path in files() for found in found_in(path))


def test_what_replaces_a_retired_word_is_not_retired_itself():
    for entry in RETIRED:
        for other in RETIRED:
            if "word" in other:
                assert not re.search(rf"\b{re.escape(other['word'])}\b", entry["now"].lower())


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("ring_all()", True),
        ("class RingAll", True),
        ("it rings once", True),
        ("a string", False),
        ("the scoreboard", False),
        ("fence floors", False),
    ],
)
def test_a_retired_word_is_found_as_a_part_of_a_name_and_not_inside_a_word(tmp_path, monkeypatch, text, seen):
    path = tmp_path / "x.py"
    path.write_text(text)
    monkeypatch.setattr("tests.architecture.test_glossary.name", str)
    assert bool(list(found_in(path))) is seen
