"""Pages of a list by keys: each begins behind the last row of the one before, so that none reads the rows it passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.contrib.admin.options import IncorrectLookupParameters
from django.core import signing
from django.db.models import Model, Q, QuerySet

#: the parameter of an address that holds a cursor
CURSOR = "cursor"


class Column(NamedTuple):
    """A column of the order of a list."""

    name: str
    descending: bool


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a list: the rows before these values of its columns (`back`), or those behind them."""

    back: bool
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """Rows of a list, and the signed cursors of the pages before and behind them; "" where there is none."""

    rows: list[Any]
    before: str = ""
    behind: str = ""


class Keyset:
    """The order of a list, as ChangeList.get_ordering() gives it: names of columns without NULL, the last one unique.

    A cursor is signed for this order of this model, so that no address can compare columns with values of its own.
    """

    def __init__(self, model: type[Model], ordering: Sequence[object]) -> None:
        names = [str(name) for name in ordering]
        key = model._meta.pk.attname
        self._columns = [
            Column(key if bare == "pk" else bare, name.startswith("-"))
            for name, bare in ((name, name.removeprefix("-")) for name in names)
        ]
        self._salt = f"jobqueue.cursor.{model._meta.label_lower}.{','.join(names)}"

    def sign(self, values: Sequence[object], *, back: bool) -> str:
        """The opaque text of a cursor."""
        return signing.dumps([int(back), *map(_packed, values)], salt=self._salt)

    def read(self, text: str) -> Cursor:
        """The cursor of a text that sign() gave. Raises IncorrectLookupParameters for any other text."""
        try:
            back, *values = signing.loads(text, salt=self._salt)
        except (signing.BadSignature, ValueError) as error:
            raise IncorrectLookupParameters from error
        return Cursor(bool(back), tuple(map(_unpacked, values)))

    def beyond(self, cursor: Cursor) -> Q:
        """The rows strictly beyond the cursor: the columns are compared together, as a tuple."""
        found, equal = Q(), dict[str, Any]()
        for column, value in zip(self._columns, cursor.values, strict=True):
            below = column.descending != cursor.back
            found |= Q(**equal, **{f"{column.name}__{'lt' if below else 'gt'}": value})
            equal[column.name] = value
        if len(self._columns) == 1:
            return found
        # A range of the first column, which optimizers do not see in the alternatives.
        first, below = self._columns[0], self._columns[0].descending != cursor.back
        return Q(**{f"{first.name}__{'lte' if below else 'gte'}": cursor.values[0]}) & found

    def page(self, rows: QuerySet[Any], text: str | None, size: int) -> Page:
        """Up to `size` of `rows`, which are in this order, beyond the cursor `text`, or from the first one on.

        Raises IncorrectLookupParameters for a text that sign() did not give.
        """
        cursor = None if text is None else self.read(text)
        found = rows if cursor is None else rows.filter(self.beyond(cursor))
        back = cursor is not None and cursor.back
        # One row more than is shown tells whether there are more.
        read = list((found.reverse() if back else found)[: size + 1])
        more = len(read) > size
        del read[size:]
        if back:
            read.reverse()
        if not read:
            return Page([])
        before = self.sign(self._values(read[0]), back=True) if (more if back else cursor is not None) else ""
        behind = self.sign(self._values(read[-1]), back=False) if back or more else ""
        return Page(read, before, behind)

    def _values(self, row: Any) -> list[object]:
        return [getattr(row, column.name) for column in self._columns]


def _packed(value: object) -> object:
    if isinstance(value, datetime):
        return {"at": value.isoformat()}
    return {"hex": bytes(value).hex()} if isinstance(value, bytes | bytearray | memoryview) else value


def _unpacked(value: Any) -> object:
    if isinstance(value, dict):
        return datetime.fromisoformat(value["at"]) if "at" in value else bytes.fromhex(value["hex"])
    return value
