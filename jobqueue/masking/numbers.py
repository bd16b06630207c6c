"""Masking of numbers of cards and persons, which only their form and their check digits tell from others."""

from __future__ import annotations

import re

from jobqueue.masking.names import MASK

_CARD = re.compile(r"(?<![\w.-])[2-6]\d{3}(?:[ -]?\d{4,6}){2}(?:[ -]?\d{1,7})?(?![\w-]|\.\d)")
_ISSUER = re.compile(r"4|5[1-5]|2[2-7]|3[47]|35|30|36|38|6011|6[45]")
# Year, month and day of birth, then seven digits.
_RESIDENT = re.compile(r"(?<![\w-])\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])-[1-8]\d{6}(?![\w-])")
_SSN = re.compile(r"(?<![\w-])(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])")


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
