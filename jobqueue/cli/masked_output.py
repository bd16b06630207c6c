"""What sub-commands print, without the secrets in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.core.management.base import OutputWrapper

from jobqueue.masking import mask_text, mask_texts


class MaskedOutput(OutputWrapper):
    """Writes to where `out` does. With `as_json` each text is a JSON document, and stays one."""

    def __init__(self, out: OutputWrapper, *, as_json: bool) -> None:
        stream: Any = out._out
        super().__init__(stream)
        self._as_json = as_json

    def write(  # type: ignore[override]
        self, msg: str = "", style_func: Callable[[str], str] | None = None, ending: str | None = None
    ) -> None:
        super().write(_document(msg) if self._as_json else mask_text(msg), style_func, ending)


def _document(text: str) -> str:
    return json.dumps(mask_texts(json.loads(text))) if text.strip() else text
