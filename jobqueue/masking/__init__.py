"""Masking of secrets in what people see of payloads, results and errors. Stored rows are not changed."""

from jobqueue.masking.names import MASK, is_secret_name, own_rules
from jobqueue.masking.text import mask_tail, mask_text
from jobqueue.masking.value import has_mask, mask_texts, mask_value, unmask

__all__ = [
    "MASK",
    "has_mask",
    "is_secret_name",
    "mask_tail",
    "mask_text",
    "mask_texts",
    "mask_value",
    "own_rules",
    "unmask",
]
