"""Masking of secrets in text: tracebacks, errors, log lines and notes. Time is linear in the length of the text."""

from __future__ import annotations

import re

from jobqueue.conf import load
from jobqueue.masking.names import MASK, is_secret_name
from jobqueue.masking.numbers import mask_numbers
from jobqueue.masking.tokens import mask_tokens

# A name and what stands between it and its value: = : => := with quotes, also those of JSON within JSON. The names are
# possessive, so that each character is read once.
_NAMED = re.compile(r"(?<![\w.-])([\w.-]++)(\\*[\"']?\]?[ \t]{0,8}(?:=>|:=|==?|:)[ \t]{0,8})")
_QUOTED = re.compile(
    r"""(?P<open>\\+["'])(?:[^"'\\\n]|\\(?!["'\\]))*+(?:\\+["'])?"""
    r"""|[rbuRBU]{0,2}"(?:[^"\\\n]|\\.)*+"?"""
    r"""|[rbuRBU]{0,2}'(?:[^'\\\n]|\\.)*+'?"""
    r"""|[\[({][^\])}\n]*+[\])}]?"""
)
_BARE = re.compile(r"""[^\s,;&"'<>()\[\]{}]++""")
# Headers have values of several words.
_LINE = re.compile(r"""[^\n"'\\]++""")
_HEADERS = frozenset(["authorization", "proxy-authorization", "cookie", "set-cookie"])
_NO_SECRET = frozenset(["none", "null", "true", "false", "undefined", MASK])
_SHOWN_QUOTES = re.compile(r"""\A(\\*[rbuRBU]{0,2}["'])(?s:.*?)(\\*["'])?\Z""")
_KEY_VALUE_IN_ATTRIBUTE = re.compile(r"://([^\s/:@\"'<>]{0,200}):([^\s/@\"'<>]{1,300})@")
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY")
_ACCOUNT_TOKEN = re.compile(r"://([^\s/:@\"'<>]{20,200})@")


def mask_text(text: str) -> str:
    """`text` with its secrets as ********; what names them stays: password=********."""
    text = mask_tokens(text)
    text = _KEY_VALUE_IN_ATTRIBUTE.sub(lambda found: f"://{found[1]}:{MASK}@", text)
    text = _ACCOUNT_TOKEN.sub(f"://{MASK}@", text)
    text = mask_numbers(_mask_named(text))
    for pattern in load().mask.patterns:
        text = pattern.sub(MASK, text)
    return text


def mask_tail(text: str, chars: int) -> str:
    """The last `chars` characters of a text, masked: what may be the rest of a secret at their beginning is left out.

    A text that is shorter is a whole one.
    """
    if len(text) < chars:
        return mask_text(text)
    # The first line may have begun with a name and a value.
    _, newline, lines = text.partition("\n")
    whole = lines if newline else text.partition(" ")[2]
    end = _KEY_END.search(whole)
    if end is not None and "-----BEGIN" not in whole[: end.start()]:
        whole = f"{MASK}\n{whole[end.start() :]}"
    return f"...{newline or ' '}{mask_text(whole)}"


def _mask_named(text: str) -> str:
    """Mask the values that follow telling names."""
    parts: list[str] = []
    done = start = 0
    while found := _NAMED.search(text, start):
        start = found.end()
        if not is_secret_name(found[1]):
            continue
        value = _value_at(text, found)
        if value is None or value[0].strip("\\\"'").lower() in _NO_SECRET:
            continue
        parts += [text[done : found.end()], _in_its_quotes(value[0])]
        done = start = value.end()
    return "".join([*parts, text[done:]]) if parts else text


def _value_at(text: str, found: re.Match[str]) -> re.Match[str] | None:
    quoted = _QUOTED.match(text, found.end())
    if quoted is not None:
        return quoted
    is_header = found[1].lower() in _HEADERS and ":" in found[2]
    return (_LINE if is_header else _BARE).match(text, found.end())


def _in_its_quotes(value: str) -> str:
    quotes = _SHOWN_QUOTES.match(value)
    return f"{quotes[1]}{MASK}{quotes[2] or ''}" if quotes else MASK
