"""Masking of secrets in what people see of payloads, results, errors and settings. Stored rows are not changed.

Texts are masked by patterns, values in JSON by the names of their keys. unmask() is the way back for values that
somebody edits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

from jobqueue.base.payload import JSON
from jobqueue.conf import MaskSettings, load
from jobqueue.exceptions import WrongSettings

#: stands for a secret
MASK = "********"
NAME_CHARS = 200

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_SECRET_WORDS = frozenset([
    "password", "passwd", "passphrase", "passcode", "pwd", "pw", "secret", "secrets", "token", "credential",
    "credentials", "authorization", "auth", "cookie", "cookies", "session", "csrf", "xsrf", "jwt", "bearer",
    "dsn", "cvc", "cvv", "cvn", "ssn", "rrn", "otp", "totp", "pin", "apikey", "privatekey", "secretkey",
    "accesskey", "authtoken", "sessionid", "sessionkey", "sid", "cardnumber", "creditcard", "pass", "passwords",
    "tokens", "signature", "sig", "cred", "creds",
])  # fmt: skip
_THINGS = frozenset(["auth", "session", "token", "cookie", "credential", "credentials"])
_SECRET_ENDS = (
    "password", "passwd", "passphrase", "secret", "token", "apikey", "credential", "credentials", "passwords",
    "비밀번호", "비번", "주민등록번호", "주민번호", "카드번호", "인증번호", "토큰", "비밀키",
)  # fmt: skip
_PHRASES = (
    "apikey", "accesskey", "accountkey", "secretkey", "privatekey", "signingkey", "encryptionkey", "sharedkey",
    "cardnumber", "creditcard", "cardno", "securitycode", "connectionstring", "databaseurl", "brokerurl", "redisurl",
    "socialsecurity", "residentregistration", "sharedaccesssignature", "accesstokens", "refreshtokens",
    "sshkey", "masterkey", "appkey", "clientkey", "deploykey", "logincode", "verificationcode", "confirmationcode",
    "accesscode", "authcode",
)  # fmt: skip
#: a name that begins or ends with one of these tells about a secret but holds none: token_count, password_changed_at
_ABOUT_ENDS = frozenset([
    "count", "counts", "limit", "limits", "bucket", "type", "types", "length", "size", "age", "expires",
    "expiry", "expired", "at", "on", "in", "seconds", "required", "enabled", "name", "field", "form", "policy",
    "hint", "reset", "status", "valid",
])  # fmt: skip
_ABOUT_BEGINS = frozenset([
    "has", "is", "max", "min", "num", "total", "require", "requires", "prompt", "completion", "input", "output", "used",
])  # fmt: skip


def is_secret_name(name: str) -> bool:
    """Return whether a key, argument or header of this name holds a secret; dbPassword, X-Api-Key and PGPASSWORD do."""
    end = name[-NAME_CHARS:]
    return _known(end) or (bool(keys := own_rules().keys) and plain_name(end) in keys)


@lru_cache(maxsize=4096)
def _known(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _ABOUT_ENDS or words[0] in _ABOUT_BEGINS:
        return False
    joined = "".join(words)
    return (
        not _SECRET_WORDS.isdisjoint(words)
        or any(word.endswith(_SECRET_ENDS) for word in words)
        or any(phrase in joined for phrase in _PHRASES)
    )


@lru_cache(maxsize=4096)
def names_a_thing(name: str) -> bool:
    """Return whether a secret name may as well be that of a host or of a kind of rows: auth-1, session, token."""
    words = [word.lower() for word in _WORD.findall(name[-NAME_CHARS:])]
    secret = {word for word in words if word in _SECRET_WORDS or word.endswith(_SECRET_ENDS)}
    return bool(secret) and secret <= _THINGS and not any(phrase in "".join(words) for phrase in _PHRASES)


def own_rules() -> MaskSettings:
    """The rules that the settings add; none while they are wrong, which a page reports."""
    try:
        return load().mask
    except WrongSettings:
        return MaskSettings()


def plain_name(name: str) -> str:
    """A name in lower case without what stands between its words, as KEYS are compared."""
    return re.sub(r"[\W_]", "", name).lower()


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
#: up to the last @ of what has no blank: a password may have an @ and a / of its own
_ACCOUNT = re.compile(r"://([^\s/:\"'<>]{0,200}):([^\s\"'<>]{1,300})@")
_PORT = re.compile(r"\d{1,5}[/?#]")
#: schemes whose URLs have paths with an @: https://registry:5000/@scope/name
_WITH_PATHS = ("http", "https", "ws", "wss", "ssh", "git", "ftp")
_ACCOUNT_TOKEN = re.compile(r"://([^\s/:@\"'<>]{20,200})@")
_FORMS = (
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}",  # AWS
    r"gh[pousr]_\w{20,255}|github_pat_\w{20,255}",
    r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|oas|imt|ffct)-[\w-]{16,255}",  # GitLab
    r"xox[abeoprs]-[\w-]{10,255}|xapp-[\w-]{10,255}|xwfp-[\w-]{10,255}",  # Slack
    r"(?:sk|rk|pk)_(?:live|test)_\w{10,255}|whsec_[\w+/=]{16,255}",  # Stripe
    r"AIza[\w-]{35}|ya29\.[\w.-]{20,1000}|GOCSPX-[\w-]{20,100}|1//0[\w-]{30,200}",  # Google
    r"(?:AC|SK)[0-9a-f]{32}",  # Twilio
    r"SG\.[\w-]{16,40}\.[\w-]{16,80}",  # SendGrid
    r"npm_\w{30,100}|pypi-[\w-]{30,500}|dckr_(?:pat|oat)_[\w-]{20,100}|rubygems_[0-9a-f]{32,64}",
    r"\d{8,10}:AA[\w-]{32,40}",  # Telegram
    r"sk-(?:ant-|proj-|svcacct-|or-)?[\w-]{20,300}",
    r"hf_[A-Za-z0-9]{30,60}|gsk_\w{40,80}|xai-\w{40,100}|r8_\w{30,60}",
    r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}|sq0(?:atp|csp)-[\w-]{20,60}",  # Shopify, Square
    r"dop_v1_[0-9a-f]{60,70}|hv[sbr]\.[\w-]{20,300}|glsa_\w{30,60}|dapi[0-9a-f]{32}|lin_api_\w{30,60}",
    r"key-[0-9a-f]{32}|[0-9a-f]{32}-us\d{1,2}|NRAK-[A-Z0-9]{27}|sntrys_[\w+/=-]{30,400}|PMAK-[0-9a-f-]{40,70}",
    r"AGE-SECRET-KEY-1[0-9A-Z]{50,60}|figd_[\w-]{30,60}|ATATT3[\w=-]{30,300}",
    r"eyJ[\w-]{6,}+\.[\w-]{4,}+(?:\.[\w-]*+){0,3}",  # JWT, JWE
)
_TOKEN = re.compile(r"(?<![\w-])(?:" + "|".join(_FORMS) + r")(?![\w-])")
_WEBHOOK = re.compile(r"(hooks\.slack\.com/(?:services|workflows)/|discord(?:app)?\.com/api/webhooks/)[\w/-]{10,200}")
# Of the schemes only with what looks like a token: "Basic authentication" is text.
_SCHEME = re.compile(r"\b(Bearer|Basic|Token|ApiKey)([ \t]{1,8})(?=[^\s\d=]{0,500}[\d=])[\w.~+/=-]{8,2000}", re.I)
# Up to the next row of dashes, so that text with many beginnings is read once. A key that was cut has no end.
_PRIVATE_KEY = re.compile(
    r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)(?:[^-]|-(?!----))*+"
    r"(-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?"
)
_CARD = re.compile(r"(?<![\w.-])[2-6]\d{3}(?:[ -]?\d{4,6}){2}(?:[ -]?\d{1,7})?(?![\w-]|\.\d)")
_ISSUER = re.compile(r"4|5[1-5]|2[2-7]|3[47]|35|30|36|38|6011|6[45]")
# Year, month and day of birth, then seven digits.
_RESIDENT = re.compile(r"(?<![\w-])\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])-[1-8]\d{6}(?![\w-])")
_SSN = re.compile(r"(?<![\w-])(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])")


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
    """True if the text is no secret but the name of a worker, such as auth-1:211:5f0c2a9e/1.1, or a key: session:42."""
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


def mask_urls(text: str) -> str:
    """`text` with masked passwords in its URLs: mysql://kim:********@db/shop."""
    return _ACCOUNT_TOKEN.sub(f"://{MASK}@", _ACCOUNT.sub(_without_password, text))


def _without_password(found: re.Match[str]) -> str:
    before = found.string[max(0, found.start() - 5) : found.start()]
    if _PORT.match(found[2]) and re.split(r"[^a-z]", before.lower())[-1] in _WITH_PATHS:
        return found[0]
    return f"://{found[1]}:{MASK}@"


def mask_tokens(text: str) -> str:
    """Mask private keys, tokens by their prefixes, webhooks, and what follows Bearer, Basic and Token."""
    text = _PRIVATE_KEY.sub(lambda found: f"{found[1]}{MASK}{found[2] or ''}", text)
    text = _TOKEN.sub(MASK, text)
    text = _WEBHOOK.sub(rf"\1{MASK}", text)
    return _SCHEME.sub(rf"\1\2{MASK}", text)


def mask_numbers(text: str) -> str:
    """Mask credit card numbers, Korean resident registration numbers and US social security numbers."""
    text = _CARD.sub(lambda found: MASK if _is_card(found[0]) else found[0], text)
    return _SSN.sub(MASK, _RESIDENT.sub(MASK, text))


def _is_card(text: str) -> bool:
    digits = [int(sign) for sign in text if sign.isdecimal()]
    if not 13 <= len(digits) <= 19 or not _ISSUER.match(text):
        return False
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


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


_PLAIN_NAME = re.compile(r"-{0,2}[\w.-]{1,100}")


def mask_value(value: JSON) -> JSON:
    """A copy of `value` in which secrets are masked: values of telling keys as a whole, others as mask_text() does.

    What is no JSON, such as an error in place of a value that cannot be read, is returned as it is.
    """
    return _copy(value, _masked_value)


def mask_texts(value: JSON) -> JSON:
    """A copy of `value` in which texts are masked as mask_text() does, whatever their keys are called.

    For documents of ours, whose keys may be names of queues and tasks, such as "auth".
    """
    return _copy(value, lambda _place, found: _masked_text(found))


def _copy(value: JSON, mask: Callable[[object, Any], Any]) -> JSON:
    """A copy with mask(its key or place, it) for each value; containers that it returns are masked in turn."""
    top: list[Any] = [value]
    # A stack of its own: values can be nested deeper than Python's.
    open_containers: list[Any] = [top]
    while open_containers:
        container = open_containers.pop()
        places = list(container.items()) if isinstance(container, dict) else list(enumerate(container))
        names = _names(places) if isinstance(container, list) else {}
        for place, found in places:
            container[place] = masked = mask(names.get(place, place), found)
            if isinstance(masked, (dict, list)):
                open_containers.append(masked)
        if isinstance(container, dict):
            _mask_keys(container)
    result: JSON = top[0]
    return result


def _names(places: list[tuple[Any, Any]]) -> dict[Any, str]:
    """The names of items that stand beside one: ["--password", "x"], and the pair ["password", "x"]."""
    pairs = pairwise(places)
    pair = len(places) == 2
    return {
        after[0]: before[1]
        for before, after in pairs
        if isinstance(before[1], str)
        and isinstance(after[1], str)
        and (pair or before[1].startswith("-"))
        and _PLAIN_NAME.fullmatch(before[1])
    }


def _masked_value(place: object, found: Any) -> Any:
    """A mask, masked text, or a copy of a container that is still to be masked, in place of `found`."""
    if isinstance(place, str) and not (found is None or isinstance(found, bool)) and is_secret_name(place):
        return MASK
    if isinstance(found, int) and not isinstance(found, bool) and mask_text(str(found)) != str(found):
        return MASK
    return _masked_text(found)


def _masked_text(found: Any) -> Any:
    if isinstance(found, str):
        return mask_text(found)
    if isinstance(found, dict):
        return dict(found)
    if isinstance(found, (list, tuple)):
        return list(found)
    return found


def _mask_keys(container: dict[Any, Any]) -> None:
    """Mask secrets that are keys themselves; the order stays."""
    names = {key: mask_text(key) if isinstance(key, str) else key for key in container}
    if any(key != name for key, name in names.items()):
        entries = [(names[key], value) for key, value in container.items()]
        container.clear()
        container.update(entries)


def unmask(given: JSON, stored: JSON) -> JSON:
    """`given` with the secrets of `stored` in the places where `given` has what mask_value(stored) shows there.

    An entry of an object keeps its key, one of a list its place. A MASK that is left stands for no known secret.
    """
    return _unmasked(given, stored, mask_value(stored))


def _unmasked(given: JSON, stored: JSON, shown: JSON) -> JSON:
    # As texts: True equals 1.
    if json.dumps(given, sort_keys=True) == json.dumps(shown, sort_keys=True):
        return stored
    if isinstance(given, dict) and isinstance(stored, dict) and isinstance(shown, dict):
        # Keys may be masked too: two of them may have become one.
        pairs = zip(shown.items(), stored.items(), strict=True) if len(shown) == len(stored) else ()
        known = {masked: (key, value, seen) for (masked, seen), (key, value) in pairs}
        return dict(_entry(key, value, known) for key, value in given.items())
    if isinstance(given, list) and isinstance(stored, list) and isinstance(shown, list):
        beside = [*zip(stored, shown, strict=True), *[(None, None)] * len(given)]
        return [_unmasked(value, *places) for value, places in zip(given, beside, strict=False)]
    return given


def _entry(key: str, value: JSON, known: dict[str, tuple[str, JSON, JSON]]) -> tuple[str, JSON]:
    if key not in known:
        return key, value
    own, stored, shown = known[key]
    return own, _unmasked(value, stored, shown)


def has_mask(value: JSON) -> bool:
    """Return whether a text in `value` contains a MASK."""
    values: list[JSON] = [value]
    while values:
        found = values.pop()
        if isinstance(found, dict):
            values += [*found, *found.values()]
        elif isinstance(found, list):
            values += found
        elif isinstance(found, str) and MASK in found:
            return True
    return False
