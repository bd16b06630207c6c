"""What a page may show of a URL in a setting: never more than scheme and host."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: stands for what is not shown
HIDDEN = "•••"
_ONE_HOST = r"(?:[\w.-]+|\[[\w:.]+\])(?::\d{1,5})?"
#: hosts of a URL, for some brokers several. A port is a number: any other text may be a password without its host
_HOSTS = re.compile(rf"(?:{_ONE_HOST}(?:,{_ONE_HOST})*)?")
#: the number of a Redis database: no secret is that short
_NUMBER = re.compile(r"/\d{1,2}")
_PLAIN_ROUTES = ("subscribers", "queue:")


def hide_url(url: str) -> str:
    """A URL without its account, path and query: redis://:pw@cache:6379/0 is redis://•••@cache:6379/0.

    Where it is not certain where the host begins, as with a / in a password, only the scheme is left.
    """
    scheme, mark, rest = url.partition("://")
    if not mark or not re.fullmatch(r"[\w+.-]+", scheme):
        return HIDDEN
    end = min((found for sign in "/?#" if (found := rest.find(sign)) >= 0), default=len(rest))
    _account, at, host = rest[:end].rpartition("@")
    tail = rest[end:]
    if "@" in tail or "://" in tail or not _HOSTS.fullmatch(host):
        return f"{scheme}://{HIDDEN}"
    place = f"{scheme}://{HIDDEN if at else ''}{at}{host}"
    if tail in ("", "/") or _NUMBER.fullmatch(tail):
        return place + tail
    return f"{place}/{HIDDEN}"


def hide_place(place: str) -> str:
    """A value of WAKEUP or REDIS_URL: a word and cache:ALIAS as they are, a URL hidden."""
    return place if place in ("auto", "off") or place.startswith("cache:") else hide_url(place)


def hide_route(route: object) -> str:
    """A route of OUTBOX: its URL hidden, and only the names of its options."""
    if isinstance(route, Mapping):
        options = ", ".join(str(key) for key in route if key != "URL")
        place = hide_route(route.get("URL"))
        return f"{place} ({options})" if options else place
    text = route if isinstance(route, str) else ""
    return text if text.startswith(_PLAIN_ROUTES) else hide_url(text)


def hide_database(name: str) -> str:
    """The NAME of a database: hidden where it is a URL or a list of connection parameters."""
    return HIDDEN if "://" in name or "=" in name else name
