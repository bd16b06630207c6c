"""Names that tell that their value is a secret."""

from __future__ import annotations

import re
from functools import lru_cache

from jobqueue.conf import load
from jobqueue.conf.masking import MaskSettings
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
    """Whether a key, argument or header of this name holds a secret; dbPassword, X-Api-Key and PGPASSWORD do."""
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
    """Whether a secret name may as well be that of a host or of a kind of rows: auth-1, session, token."""
    words = [word.lower() for word in _WORD.findall(name[-NAME_CHARS:])]
    secret = {word for word in words if word in _SECRET_WORDS or word.endswith(_SECRET_ENDS)}
    return bool(secret) and secret <= _THINGS and not any(phrase in "".join(words) for phrase in _PHRASES)


def own_rules() -> MaskSettings:
    """What the settings add; nothing while they are wrong, for a page says so then."""
    try:
        return load().mask
    except WrongSettings:
        return MaskSettings()


def plain_name(name: str) -> str:
    """A name in lower case without what stands between its words, as KEYS are compared."""
    return re.sub(r"[\W_]", "", name).lower()
