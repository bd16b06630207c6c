"""The Idempotency-Key header for views, as draft-ietf-httpapi-idempotency-key-header describes it."""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar, cast

from asgiref.sync import iscoroutinefunction
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse

from jobqueue.base.compat import Task
from jobqueue.base.payload import JSON
from jobqueue.base.validation import check_seconds
from jobqueue.db.alias import alias_of
from jobqueue.exceptions import InProgress, InvalidType, KeyReused, NotSupported
from jobqueue.idempotency.once import DAY_SECONDS, WAIT_SECONDS, Once, once
from jobqueue.idempotency.records import Key

V = TypeVar("V", bound=Callable[..., Any])

KEY_CHARS = 255
_METHODS = {"POST", "PATCH", "PUT", "DELETE"}
# Statuses that ask the client to retry. A stored response would be the answer to the retry, too.
_COME_AGAIN = {408, 409, 425, 429}
_HEADERS = ("Content-Type", "Content-Encoding", "Location")


def idempotent_view(
    ttl_seconds: float = DAY_SECONDS,
    *,
    timeout_seconds: float = WAIT_SECONDS,
    required: bool = True,
    scope: Callable[[HttpRequest], Key] | None = None,
    using: str | None = None,
) -> Callable[[V], V]:
    """Decorator for views: a repeated request with the same Idempotency-Key header gets the first response again.

    For POST, PATCH, PUT and DELETE; other requests pass. The response is 400 without the header (if `required`) or with
    a bad one, 409 while the first request is still running after timeout_seconds, 422 if the key was used for another
    body. A key belongs to one method, host, path and client: `scope(request)`, a key for once(); else request.user, or
    without a user the Authorization header. The view runs in a transaction; an exception, or a status of 408, 409, 425,
    429 or from 500 on, rolls it back and frees the key. Status, body, its type and encoding, and Location are stored.
    """
    _check(ttl_seconds, timeout_seconds, scope)

    def decorate(view: V) -> V:
        _check_view(view)

        @wraps(view)
        def call(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            given = request.headers.get("Idempotency-Key")
            if request.method not in _METHODS or (given is None and not required):
                return cast(HttpResponseBase, view(request, *args, **kwargs))
            key = _key(given)
            if key is None:
                return _problem(400, "This request needs an Idempotency-Key header of 1 to 255 visible characters.")
            query = request.META.get("QUERY_STRING", "").encode()
            sent, scoped = hashlib.sha256(request.body + b"\x00" + query).digest(), _scoped(request, key, scope)
            mine = once(scoped, ttl_seconds, timeout_seconds=timeout_seconds, fingerprint=sent, using=using)
            return _first_or_again(mine, partial(view, request, *args, **kwargs), alias_of(using))

        return cast("V", call)

    return decorate


def _check(ttl_seconds: object, timeout_seconds: object, scope: object) -> None:
    if callable(ttl_seconds):
        raise InvalidType("@idempotent_view is written with parentheses: @idempotent_view().")
    check_seconds(ttl_seconds, "ttl_seconds")
    check_seconds(timeout_seconds, "timeout_seconds", zero=True)
    if scope is not None and not callable(scope):
        raise InvalidType(f"scope must be a function of the request, got {type(scope).__name__}.")


def _check_view(view: object) -> None:
    if not callable(view) or isinstance(view, Task):
        raise InvalidType(f"@idempotent_view decorates a view function, got {type(view).__name__}.")
    if iscoroutinefunction(view):
        raise NotSupported("@idempotent_view is for views that are functions, not coroutines.")


def _first_or_again(mine: Once, view: Callable[[], HttpResponseBase], using: str) -> HttpResponseBase:
    try:
        with mine as o:
            if o.done:
                return _replayed(o.result)
            response = view()
            o.result = _kept(response, using)
        return response
    except InProgress:
        return _problem(409, "A request with this Idempotency-Key is still being worked on.")
    except KeyReused:
        return _problem(422, "This Idempotency-Key was used for a request with another body.")


def _scoped(request: HttpRequest, key: str, scope: Callable[[HttpRequest], Key] | None) -> Key:
    """The key for once(), with the client in it: clients must not get each other's responses."""
    client = _client(request) if scope is None else scope(request)
    if not isinstance(client, (str, bytes, int, uuid.UUID, tuple)):
        raise InvalidType(
            f"the scope of an @idempotent_view must return a str, bytes, int, UUID or a tuple of them, got "
            f"{type(client).__name__}. Nothing was written."
        )
    who = client if isinstance(client, tuple) else (client,)
    return ("http", str(request.method), request.get_host().lower(), request.path, *who, key)


def _client(request: HttpRequest) -> str:
    """The user, whose id outlives a token; without a user a hash of the credentials."""
    user = getattr(getattr(request, "user", None), "pk", None)
    if user is not None:
        return f"user {user}"
    credentials = request.headers.get("Authorization")
    # Hashed, because the key is stored and shown in the admin.
    return "-" if not credentials else f"authorization {hashlib.sha256(credentials.encode()).hexdigest()}"


def _key(header: str | None) -> str | None:
    """The key: a string of structured fields, "8e03..." in quotes, or without quotes, as most clients send it."""
    text = (header or "").strip()
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    return text if 1 <= len(text) <= KEY_CHARS and text.isascii() and text.isprintable() else None


def _kept(response: Any, using: str) -> JSON:
    if response.status_code >= 500 or response.status_code in _COME_AGAIN:
        transaction.set_rollback(True, using=using)
        return None
    if getattr(response, "streaming", False):
        raise NotSupported(
            "@idempotent_view cannot keep a streaming response; nothing was written. Return a plain one."
        )
    if hasattr(response, "render"):
        response.render()
    headers = {name: response[name] for name in _HEADERS if name in response}
    return {"status": response.status_code, "headers": headers, "body": base64.b64encode(response.content).decode()}


def _replayed(kept: Any) -> HttpResponse:
    response = HttpResponse(base64.b64decode(kept["body"]), status=kept["status"])
    for name, value in kept["headers"].items():
        response[name] = value
    return response


def _problem(status: int, text: str) -> JsonResponse:
    """A problem document (RFC 9457)."""
    titles = {400: "Idempotency-Key is missing", 409: "Request in progress", 422: "Idempotency-Key is already used"}
    facts = {"title": titles[status], "status": status, "detail": text}
    return JsonResponse(facts, status=status, content_type="application/problem+json")
