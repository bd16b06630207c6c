"""Addresses of the pages of the admin."""

from __future__ import annotations

from urllib.parse import urlencode

from django.urls import reverse


def list_address(model: str, **query: str) -> str:
    """The address of the list of a model, with a filter."""
    address = reverse(f"admin:jobqueue_{model}_changelist")
    return f"{address}?{urlencode(query)}" if query else address


def page_address(model: str, row_id: object) -> str:
    """The address of the page of a row."""
    return reverse(f"admin:jobqueue_{model}_change", args=[row_id])
