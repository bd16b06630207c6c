"""Masking of secrets that their own form tells: keys and tokens with a public prefix, JWTs, private keys."""

from __future__ import annotations

import re

from jobqueue.masking.names import MASK

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


def mask_tokens(text: str) -> str:
    """Mask private keys, tokens by their prefixes, webhooks, and what follows Bearer, Basic and Token."""
    text = _PRIVATE_KEY.sub(lambda found: f"{found[1]}{MASK}{found[2] or ''}", text)
    text = _TOKEN.sub(MASK, text)
    text = _WEBHOOK.sub(rf"\1{MASK}", text)
    return _SCHEME.sub(rf"\1\2{MASK}", text)
