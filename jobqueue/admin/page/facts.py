"""What is known of a row as names and values, without those that are empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jobqueue.admin.page.formatting import NOTHING

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise


class Fact(NamedTuple):
    """A name, and a value as the template facts.html shows it."""

    title: StrOrPromise
    value: str


def facts(*pairs: tuple[StrOrPromise, object]) -> list[Fact]:
    """Those of `pairs` whose value is neither None nor an empty text nor a dash; 0 is a value."""
    return [Fact(title, value if isinstance(value, str) else str(value)) for title, value in pairs if _is_some(value)]


def _is_some(value: object) -> bool:
    return value is not None and value not in ("", NOTHING)
