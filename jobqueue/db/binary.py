"""Bytes, and what is like them, as parameters of statements.

MySQL's drivers write parameters into the statement's text. Bytes that are no text make that text unreadable: as long as
it runs, the server refuses every look at its list of processes and transactions (error 3854). There bytes travel as
hexadecimal digits, which the server turns back once per statement, before it chooses an index. Characters of four bytes
(emoji) have the same effect: what shows the statements has three bytes for each.
"""

from __future__ import annotations

from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper


class Hex(str):
    """Hexadecimal digits that stand for bytes; a statement must have them at place(), not at a bare %s."""

    __slots__ = ()


class HexText(Hex):
    """Hexadecimal digits that stand for text in UTF-8. Beside a column of a binary collation, that is what counts."""

    __slots__ = ()


def place(parameter: Any) -> str:
    """The placeholder of a parameter."""
    if not isinstance(parameter, Hex):
        return "%s"
    return "CONVERT(UNHEX(%s) USING utf8mb4)" if isinstance(parameter, HexText) else "UNHEX(%s)"


class Parameters:
    """How values go to a database's driver; as they are where parameters do not travel in the text."""

    def json_parameter(self, connection: BaseDatabaseWrapper, text: str) -> Any:
        """What the driver takes for a JSON column, from JSON text."""
        return text

    def text_parameter(self, connection: BaseDatabaseWrapper, text: str) -> Any:
        """What a statement takes for a name or other text, at binary.place() of it."""
        return text

    def binary_parameter(self, connection: BaseDatabaseWrapper, value: bytes) -> Any:
        """What a statement takes for a binary column, at binary.place() of it."""
        found: Any = connection.Database.Binary(value)  # type: ignore[attr-defined]
        return found
