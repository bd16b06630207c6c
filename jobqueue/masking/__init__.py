"""Masking of secrets in what people see of payloads, results and errors. Stored rows are not changed."""

from jobqueue.masking.names import MASK, is_secret_name
from jobqueue.masking.text import mask_tail, mask_text
from jobqueue.masking.value import mask_value

__all__ = ["MASK", "is_secret_name", "mask_tail", "mask_text", "mask_value"]
