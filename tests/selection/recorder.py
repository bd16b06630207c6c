"""Sees each statement that code of the package sends in this process, with the room that sends it."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from tests.selection.shapes import shape
from tests.selection.statement_map import ROOT

_PACKAGE = f"{ROOT / 'jobqueue'}/"
_OTHERS = (f"{ROOT / 'tests'}/", f"{ROOT / 'demo_project'}/")


class Recorder:
    """Shapes of statements by test; a test is set for the time of its call, without its fixtures."""

    def __init__(self) -> None:
        self.test: str | None = None
        #: test -> shape -> the room that sends it
        self.sent: dict[str, dict[str, str]] = defaultdict(dict)
        self._known: set[tuple[str, str]] = set()

    def install(self) -> None:
        """See the statements of all connections of all threads, those that are prepared ahead, too."""
        from django.db.backends.utils import CursorWrapper

        for name in ("_execute", "_executemany"):
            self._see(CursorWrapper, name)

    def _see(self, wrapper: type, name: str) -> None:
        execute = getattr(wrapper, name)

        def run(cursor: Any, sql: Any, *rest: Any) -> Any:
            if self.test is not None:
                self._note(self.test, sql)
            return execute(cursor, sql, *rest)

        setattr(wrapper, name, run)

    def _note(self, test: str, sql: Any) -> None:
        key = (test, str(sql))
        if key in self._known:
            return
        self._known.add(key)
        room = _sender()
        text = shape(key[1]) if room else ""
        if room and text:
            self.sent[test].setdefault(text, room)

    def forget_texts(self) -> None:
        """At the end of a test: its texts are not needed any more."""
        self._known.clear()

    @property
    def shapes(self) -> Mapping[str, str]:
        """All shapes of this process, each with its room."""
        return {text: room for sent in self.sent.values() for text, room in sent.items()}


def _sender() -> str | None:
    """The innermost room on the stack, `db` only if there is no other; None if code of a test is nearer."""
    frame = sys._getframe(3)
    found = None
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(_PACKAGE):
            found = path.removeprefix(_PACKAGE).split("/")[0].removesuffix(".py")
            if found != "db":
                break
        elif path.startswith(_OTHERS):
            break
        frame = frame.f_back
    return found
