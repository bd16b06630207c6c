"""The end of a pause as people write it: an instant, or a duration from now."""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo

from jobqueue.db.clock import read_now
from jobqueue.durations import parse_seconds
from jobqueue.exceptions import InvalidValue


def read_until(text: str, *, using: str, zone: tzinfo | None = None) -> datetime:
    """The instant of a text such as "2026-01-31T18:00+09:00", or of "2h" from now by the database's clock.

    One without an offset is in `zone`; without `zone` it is refused. Raises InvalidValue.
    """
    words = text.strip()
    try:
        # First: "20260131" is a day, and not so many seconds.
        instant = datetime.fromisoformat(words)
    except ValueError:
        return read_now(using) + timedelta(seconds=_seconds(words))
    if instant.utcoffset() is not None:
        return instant
    if zone is None:
        raise InvalidValue(
            f"until={words} has no offset from UTC, so its instant is unknown. Nothing was written; write "
            "2026-01-31T18:00+09:00, or a duration from now such as 2h."
        )
    return instant.replace(tzinfo=zone)


def _seconds(words: str) -> float:
    try:
        return parse_seconds(words)
    except InvalidValue as error:
        raise InvalidValue(
            f"until: {error}. An instant has the form 2026-01-31T18:00+09:00. Nothing was written."
        ) from None
