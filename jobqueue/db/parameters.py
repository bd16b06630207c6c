"""Bytes, and what is like them, as parameters of statements.

MySQL's drivers write parameters into the statement's text. Bytes that are no text make that text unreadable: as long as
it runs, the server refuses every look at its list of processes and transactions (error 3854). There bytes travel as
hexadecimal digits, which the server turns back once per statement, before it chooses an index. Characters of four bytes
(emoji) have the same effect: what shows the statements has three bytes for each.
"""

from __future__ import annotations

import re
from typing import Any

#: a value as a driver takes it
Parameter = Any
#: characters beyond what utf8mb3 can hold
FOUR_BYTES = re.compile("[\U00010000-\U0010ffff]")
#: text with placeholders, and a sequence of their values
Statement = tuple[str, Any]


class Hex(str):
    """Hexadecimal digits that stand for bytes; a statement must have them at placeholder(), not at a bare %s."""

    __slots__ = ()


class HexText(Hex):
    """Hexadecimal digits that stand for text in UTF-8. Compared with a column, the column's binary collation counts."""

    __slots__ = ()


def readable(text: str) -> Parameter:
    """Text as MySQL can show it in a statement: as HexText if it has characters of four bytes."""
    return text if text.isascii() or not FOUR_BYTES.search(text) else HexText(text.encode().hex())


def placeholder(parameter: Parameter) -> str:
    if not isinstance(parameter, Hex):
        return "%s"
    return "CONVERT(UNHEX(%s) USING utf8mb4)" if isinstance(parameter, HexText) else "UNHEX(%s)"
