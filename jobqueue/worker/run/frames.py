"""A stack as text that holds no value: for each frame the file, the line and the name of the function."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any

from django.db import connections

#: innermost frames of a stack that are kept
FRAMES_MAX = 25
_UNKNOWN = "<generated>: -"
#: where Django's frames have the connection that they work for
_WRAPPER, _CURSOR = "django/db/backends/base/base.py", "django/db/backends/utils.py"


class Files:
    """The files of the modules that are imported now.

    Code from exec() or a template is not among them: its file name and the names of its functions may hold any value.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        for module in list(sys.modules.values()):
            # By vars(): some objects in sys.modules import a module when an attribute of theirs is read.
            with suppress(Exception):
                found = vars(module).get("__file__")
                if isinstance(found, str):
                    self._known.add(found)
        self._roots = sorted({path.rstrip("/") + "/" for path in sys.path if path}, key=len, reverse=True)

    def line(self, frame: FrameType) -> str:
        """`package/module.py:12 function`."""
        code: CodeType = frame.f_code
        if code.co_filename not in self._known:
            return _UNKNOWN
        return f"{self._short(code.co_filename)}:{frame.f_lineno or code.co_firstlineno} {code.co_name}"

    def _short(self, name: str) -> str:
        root = next((one for one in self._roots if name.startswith(one)), "")
        return name[len(root) :] if root else "/".join(name.split("/")[-3:])


def of_thread(frame: FrameType | None) -> list[FrameType]:
    """The frames of a thread, the innermost last."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found[::-1]


def of_coroutine(task: asyncio.Task[Any]) -> list[FrameType]:
    """The frames of a coroutine that waits, the innermost last; of one that runs now, the outermost alone."""
    found: list[FrameType] = []
    waits_for: Any = task.get_coro()
    while waits_for is not None:
        frame = next(_frames(waits_for), None)
        if frame is not None:
            found.append(frame)
        waits_for = next(
            (getattr(waits_for, name) for name in ("cr_await", "gi_yieldfrom", "ag_await") if hasattr(waits_for, name)),
            None,
        )
    return found


def _frames(awaitable: Any) -> Iterator[FrameType]:
    for name in ("cr_frame", "gi_frame", "ag_frame"):
        if isinstance(frame := getattr(awaitable, name, None), FrameType):
            yield frame


def database_of(frames: Sequence[FrameType]) -> str | None:
    """The alias of the Django connection for which the innermost frames work; None: they work for none."""
    for frame in reversed(frames):
        name = frame.f_code.co_filename
        if name.endswith((_WRAPPER, _CURSOR)):
            own = frame.f_locals.get("self")
            alias = getattr(own, "alias", None) or getattr(getattr(own, "db", None), "alias", None)
            return alias if isinstance(alias, str) and alias in connections.settings else None
    return None
