"""Addresses of the pages of the admin, on the admin site that serves the request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import wraps
from typing import Any
from urllib.parse import urlencode

from django.urls import NoReverseMatch, URLPattern, reverse
from django.utils.html import format_html

# A project may show the models on several sites. Not reset after a request: Django renders a page after its view, and
# every page of ours sets it first.
_site: ContextVar[str] = ContextVar("jobqueue_admin_site", default="admin")


def use_site(name: str) -> None:
    """Serve the rest of this request by the admin site of this name."""
    _site.set(name)


def on_site(
    name: str, urls: Iterable[URLPattern], wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> list[URLPattern]:
    """`urls` with `wrapped` views that use_site()."""
    return [URLPattern(one.pattern, _using(name, wrapped(one.callback)), one.default_args, one.name) for one in urls]


def _using(name: str, view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def serve(*args: Any, **kwargs: Any) -> Any:
        use_site(name)
        return view(*args, **kwargs)

    return serve


def address_of(name: str, /, *args: object, **query: str) -> str:
    """The address of a page by the name of its URL, such as "job_changelist"; "" if the site does not have it."""
    try:
        address = reverse(f"admin:jobqueue_{name}", args=args, current_app=_site.get())
    except NoReverseMatch:
        return ""
    return f"{address}?{urlencode(query)}" if query else address


def index_address() -> str:
    """The address of the first page of the site."""
    return reverse("admin:index", current_app=_site.get())


def list_address(model: str, /, **query: str) -> str:
    """The address of the list of a model, with a filter; "" if the site does not have it."""
    return address_of(f"{model}_changelist", **query)


def page_address(model: str, row_id: object) -> str:
    """The address of the page of a row; "" if the site does not have it."""
    return address_of(f"{model}_change", row_id)


def id_of(text: str) -> int | None:
    """The id that a text of an address or a search is; None if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def link(address: str, text: object) -> str:
    """`text` as a link; the text alone if there is no address."""
    return format_html('<a href="{}">{}</a>', address, text) if address else format_html("{}", text)
