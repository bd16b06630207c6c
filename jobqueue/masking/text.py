"""Masking of secrets in text: tracebacks, errors, log lines and notes. Time is linear in the length of the text."""

from __future__ import annotations

import re

from jobqueue.masking.names import MASK, is_secret_name, names_a_thing, own_rules
from jobqueue.masking.numbers import mask_numbers
from jobqueue.masking.tokens import mask_tokens
from jobqueue.masking.urls import mask_urls

# A name and what stands between it and its value: = : => := with quotes, also those of JSON within JSON. The names are
# possessive, so that each character is read once.
_NAMED = re.compile(r"(?<![\w.-])([\w.-]++)(\\*[\"']?\]?[ \t]{0,8}(?:=>|:=|==?|:)[ \t]{0,8})")
# Over line breaks only up to a quote or bracket that closes it, and not far: the text of a traceback has quotes of its
# own, and what was cut off has none at its end.
_QUOTED = re.compile(
    r"""(?P<open>\\+["'])(?:[^"'\\\n]|\\(?!["'\\]))*+(?:\\+["'])?"""
    r"""|[rbuRBU]{0,2}(?P<triple>\"{3}|'{3})(?s:.{0,2000}?)(?P=triple)"""
    r"""|[rbuRBU]{0,2}"(?:[^"\\]|\\.){0,2000}+"(?=[\s,;:&)\]}]|\Z)"""
    r"""|[rbuRBU]{0,2}'(?:[^'\\]|\\.){0,2000}+'(?=[\s,;:&)\]}]|\Z)"""
    r"""|[\[({][^\])}]{0,2000}+[\])}]"""
    r"""|[rbuRBU]{0,2}"(?:[^"\\\n]|\\.)*+"?"""
    r"""|[rbuRBU]{0,2}'(?:[^'\\\n]|\\.)*+'?"""
    r"""|[\[({][^\])}\n]*+[\])}]?"""
)
_ID = re.compile(r"\d{1,19}(?::[0-9a-f]{4,32}(?:/\d{1,6}\.\d{1,6})?)?")
_BARE = re.compile(r"""[^\s,;&"'<>()\[\]{}]++""")
# Headers have values of several words.
_LINE = re.compile(r"""[^\n"'\\]++""")
_HEADERS = frozenset(["authorization", "proxy-authorization", "cookie", "set-cookie"])
_NO_SECRET = frozenset(["none", "null", "true", "false", "undefined", MASK])
_SHOWN_QUOTES = re.compile(r"""\A(\\*[rbuRBU]{0,2}["'])(?s:.*?)(\\*["'])?\Z""")
# The forms of a name and its value without a sign between them: options of a command line, a pair, an element.
_OPTION = re.compile(
    r"""(?<![\w-])(--?[A-Za-z][\w-]{1,100})((?:["'],?[ \t]{1,8}[brBR]?["']|[ \t]{1,8}(?!-)))([^\s"'\]\)]{1,2000})"""
)
_PAIR = re.compile(
    r"""([(\[][ \t]{0,8}(["'])([\w.-]{1,100})\2,[ \t]{0,8})([bruBRU]?["'])([^"'\n]{1,2000})(["'],?[)\]])"""
)
_ELEMENT = re.compile(r"(<([\w:.-]{1,100})(?:\s[^<>]{0,200})?>)([^<>]{1,2000})(?=</\2\s{0,8}>)")
# What storable() writes where it has left something out, and the rest of the line that it has cut.
_CUT = re.compile(r"(\n\.\.\. \d{1,12} bytes left out \.\.\.\n)([^\n]*\n?)")
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY")


def mask_text(text: str) -> str:
    """`text` with ******** in place of its secrets; their names stay: password=********."""
    first, *cut = _CUT.split(text)
    # After each cut: its mark, the rest of a line, which may be that of a secret, and the text up to the next one.
    parts = [_masked(first)]
    for mark, rest, after in zip(cut[::3], cut[1::3], cut[2::3], strict=True):
        parts += [mark, f"...{newline}" if (newline := rest[-1:]) == "\n" else "...", _masked(_without_key(after))]
    return "".join(parts)


def _masked(text: str) -> str:
    text = mask_tokens(text)
    text = mask_numbers(_mask_named(_mask_beside(mask_urls(text))))
    for pattern in own_rules().patterns:
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
    return f"...{newline or ' '}{mask_text(_without_key(whole))}"


def _without_key(text: str) -> str:
    """A text without the rest of a private key at its beginning."""
    end = _KEY_END.search(text)
    return text if end is None or "-----BEGIN" in text[: end.start()] else f"{MASK}\n{text[end.start() :]}"


def _mask_beside(text: str) -> str:
    """Mask the values beside telling names: --password x, ('password', 'x'), <password>x</password>."""
    text = _OPTION.sub(lambda found: f"{found[1]}{found[2]}{MASK}" if is_secret_name(found[1]) else found[0], text)
    text = _PAIR.sub(
        lambda found: f"{found[1]}{found[4]}{MASK}{found[6]}" if is_secret_name(found[3]) else found[0], text
    )
    return _ELEMENT.sub(lambda found: f"{found[1]}{MASK}" if is_secret_name(found[2]) else found[0], text)


def _mask_named(text: str) -> str:
    """Mask the values that follow telling names."""
    parts: list[str] = []
    done = start = 0
    while found := _NAMED.search(text, start):
        start = found.end()
        if not is_secret_name(found[1]):
            continue
        value = _value_at(text, found)
        if value is None or value[0].strip("\\\"'").lower() in _NO_SECRET or _is_id(found, value[0]):
            continue
        end = _end_of(value, text) if value.re is _LINE else value.end()
        parts += [text[done : found.end()], _in_its_quotes(text[found.end() : end])]
        done = start = end
    return "".join([*parts, text[done:]]) if parts else text


def _is_id(found: re.Match[str], value: str) -> bool:
    """Whether the text is no secret but the name of a worker, such as auth-1:211:5f0c2a9e/1.1, or a key: session:42."""
    return found[2] == ":" and _ID.fullmatch(value) is not None and names_a_thing(found[1])


def _value_at(text: str, found: re.Match[str]) -> re.Match[str] | None:
    quoted = _QUOTED.match(text, found.end())
    if quoted is not None:
        return quoted
    is_header = found[1].lower() in _HEADERS and ":" in found[2]
    return (_LINE if is_header else _BARE).match(text, found.end())


def _end_of(line: re.Match[str], text: str) -> int:
    """The end of a header's line, and of a value in quotes or brackets that begins in it."""
    end = line.end()
    for named in _NAMED.finditer(text, line.start(), end):
        quoted = _QUOTED.match(text, named.end()) if is_secret_name(named[1]) else None
        end = max(end, quoted.end()) if quoted else end
    return end


def _in_its_quotes(value: str) -> str:
    quotes = _SHOWN_QUOTES.match(value)
    return f"{quotes[1]}{MASK}{quotes[2] or ''}" if quotes else MASK
