"""Middleware around each enqueue and each run: what JOBQUEUE["MIDDLEWARE"] names, and some that are ready-made.

`chain` calls the classes. The producer and the runs of a worker import it; the ready-made classes are imported by their
paths: they carry the language, the time zone and the id of a web request over to the jobs that it adds.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.utils import timezone, translation
from django.utils.decorators import sync_and_async_middleware

from jobqueue.middleware.chain import NewJobContext

__all__ = ["Language", "NewJobContext", "RequestId", "TimeZone", "request_id", "request_id_middleware"]

#: visible ASCII characters: it goes into logs and a header
_ID = re.compile(r"[!-~]{1,200}")
_request_id: ContextVar[str | None] = ContextVar("jobqueue_request_id", default=None)


class _Restored:
    """Runs a job inside `around`, with what `value` gave when the job was added."""

    key = ""

    def value(self) -> str | None:
        """What to store; None: nothing."""
        raise NotImplementedError

    def around(self, value: str) -> Any:
        """The context manager of a run."""
        raise NotImplementedError

    def enqueue(self, job: NewJobContext, next: Callable[[], object]) -> object:
        if (value := self.value()) is not None:
            job.context[self.key] = value
        return next()

    def run(self, job: Any, next: Callable[[], Any]) -> Any:
        with self._around(job):
            return next()

    async def arun(self, job: Any, next: Callable[[], Any]) -> Any:
        with self._around(job):
            return await next()

    @contextmanager
    def _around(self, job: Any) -> Iterator[None]:
        value = job.context.get(self.key)
        if not isinstance(value, str):
            yield
            return
        with self.around(value):
            yield


class Language(_Restored):
    """The run of a job has the language that was active when it was added (context["language"])."""

    key = "language"

    def value(self) -> str | None:
        return translation.get_language()

    def around(self, value: str) -> Any:
        return translation.override(value)


class TimeZone(_Restored):
    """The run of a job has the time zone that was current when it was added (context["time_zone"]).

    A zone without a name in the IANA database, such as a fixed offset, is not carried over.
    """

    key = "time_zone"

    def value(self) -> str | None:
        return getattr(timezone.get_current_timezone(), "key", None)

    def around(self, value: str) -> Any:
        return timezone.override(value)


class RequestId(_Restored):
    """request_id() is in the run of a job what it was when the job was added (context["request_id"])."""

    key = "request_id"

    def value(self) -> str | None:
        return request_id()

    def around(self, value: str) -> Any:
        return _with_id(value)


def request_id() -> str | None:
    """The id of the request that is answered, or from which the running job comes; None without one."""
    return _request_id.get()


@contextmanager
def _with_id(value: str) -> Iterator[None]:
    mark = _request_id.set(value)
    try:
        yield
    finally:
        _request_id.reset(mark)


@sync_and_async_middleware
def request_id_middleware(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Django middleware: request_id() is the header X-Request-ID, or a new UUID; the response has it too.

    A header with more than 200 characters, or others than visible ASCII characters, is replaced.
    """

    def given(request: HttpRequest) -> str:
        found = request.headers.get("X-Request-ID", "")
        return found if _ID.fullmatch(found) else str(uuid.uuid4())

    if iscoroutinefunction(get_response):

        async def amiddleware(request: HttpRequest) -> HttpResponse:
            with _with_id(given(request)):
                response: HttpResponse = await get_response(request)
                response.headers.setdefault("X-Request-ID", request_id() or "")
            return response

        return amiddleware

    def middleware(request: HttpRequest) -> HttpResponse:
        with _with_id(given(request)):
            response: HttpResponse = get_response(request)
            response.headers.setdefault("X-Request-ID", request_id() or "")
        return response

    return middleware
