"""All pages of the admin that show something: the lists, a page of each kind of row, and our own pages."""

from __future__ import annotations

from collections.abc import Iterator

from django.contrib import admin
from django.urls import NoReverseMatch, URLPattern, get_resolver, reverse

APP = "jobqueue"
#: filters and tabs of the list of jobs
JOB_LISTS = (
    *("state=ready", "state=failed", "state=done", "state=running", "queue=crowd000", "state=failed&queue=crowd000"),
    *("cause=data", "q=5000"),
)
RANGES = ("15m", "1h", "24h", "7d")
#: they write, or need a row that was chosen before
_NOT_SHOWN = ("_add", "_delete", "_change", "_history", "_changelist")


def models():
    """The models of ours that the admin shows."""
    return [model for model in admin.site._registry if model._meta.app_label == APP]


def addresses() -> Iterator[tuple[str, str]]:
    """(name, address) of each page; a page of a row only where there is one."""
    overview = reverse("admin:app_list", kwargs={"app_label": APP})
    yield from ((f"overview {key}", f"{overview}?range={key}") for key in RANGES)
    for model in models():
        name = f"{APP}_{model._meta.model_name}"
        yield f"{model._meta.model_name} list", reverse(f"admin:{name}_changelist")
        row = model.objects.order_by("-pk").values_list("pk", flat=True).first()
        if row is not None:
            yield f"{model._meta.model_name} page", reverse(f"admin:{name}_change", args=[row])
            yield f"{model._meta.model_name} history", reverse(f"admin:{name}_history", args=[row])
    jobs = reverse("admin:jobqueue_job_changelist")
    yield from ((f"job list, {query}", f"{jobs}?{query}") for query in JOB_LISTS)
    yield from own_pages()


def own_pages() -> Iterator[tuple[str, str]]:
    """Pages that are neither a list nor the page of a row, and that need no argument."""
    names = {
        pattern.name
        for group in get_resolver().url_patterns
        if getattr(group, "namespace", None) == "admin"
        for one in group.url_patterns
        for pattern in getattr(one, "url_patterns", [one])
        if isinstance(pattern, URLPattern) and (pattern.name or "").startswith(APP)
    }
    for name in sorted(names):
        if not name.endswith(_NOT_SHOWN):
            try:
                yield name.removeprefix(f"{APP}_"), reverse(f"admin:{name}")
            except NoReverseMatch:
                continue
