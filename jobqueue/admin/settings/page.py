"""The page of settings and checks: what is in force, what the database is, and, on request, what the doctor finds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.db import Error
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from jobqueue import conf
from jobqueue.admin.page.formatting import badge, plain
from jobqueue.admin.page.site_pages import SitePage
from jobqueue.admin.settings.database import server_facts, versions
from jobqueue.admin.settings.values import groups
from jobqueue.doctor import Finding, Level
from jobqueue.doctor.examination import Examination, run_checks

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

    Facts = list[tuple[StrOrPromise, str]]

#: Limits of queues stand in the settings and on the page of queues: who may see those may see these. A run of the
#: checks takes seconds of the database, and names sessions, hosts and files: it is for those who set queues up.
VIEW, CHECK = "jobqueue.view_flowrule", "jobqueue.change_limits"
#: no check begins later than this after the first one, and no SELECT of a check may run for longer than the second time
LIMIT_SECONDS, READ_SECONDS = 10.0, 2.0
#: characters of an error or a finding
TOLD_CHARS = 2000
_LEVELS: Mapping[Level, tuple[str, StrOrPromise]] = {
    Level.ERROR: ("failed", _("error")),
    Level.WARNING: ("expired", _("warning")),
    Level.INFO: ("scheduled", _("information")),
}


def settings_view(request: HttpRequest, site: AdminSite) -> HttpResponse:
    """The page; a POST runs the checks and shows it with what they find. Works also while JOBQUEUE is wrong."""
    may_check = request.user.has_perm(CHECK)
    if request.method == "POST" and not may_check:
        raise PermissionDenied
    raw = getattr(settings, "JOBQUEUE", {})
    found, problems = conf.read(raw)
    known = found.database in settings.DATABASES
    facts, unreachable = _facts(found.database) if known else (list(versions()), "")
    run = _run(found.database) if request.method == "POST" and known and not problems else None
    context = {
        **site.each_context(request),
        "title": PAGE.title,
        "problems": [plain(problem) for problem in problems],
        "facts": facts,
        "unreachable": unreachable,
        "may_check": may_check and known and not problems,
        "limit": round(LIMIT_SECONDS),
        "run": None if run is None else _shown(run),
        "groups": list(groups(found, raw if isinstance(raw, Mapping) else {})),
    }
    return TemplateResponse(request, "admin/jobqueue/settings.html", context)


def _facts(using: str) -> tuple[Facts, str]:
    """The facts, and why there are none of the database."""
    try:
        return [*server_facts(using), *versions()], ""
    except Error as error:
        return list(versions()), _told(f"{type(error).__name__}: {error}")


def _run(using: str) -> Examination:
    """What the command shows, without the servers beside the database, for a limited time."""
    return run_checks(using, beside=False, seconds=READ_SECONDS, limit_seconds=LIMIT_SECONDS)


def _shown(run: Examination) -> dict[str, Any]:
    passed, left_out = len(run.passed), len(run.left_out)
    right = ngettext("%(n)d check has found nothing", "%(n)d checks have found nothing", passed) % {"n": passed}
    left = ngettext("%(n)d check was left out", "%(n)d checks were left out", left_out) % {"n": left_out}
    is_bad = run.is_over or any(finding.is_bad for finding in run.findings)
    return {
        "findings": list(_findings(run.findings)),
        "is_right": not is_bad,
        "lists": [(title, names) for title, names in ((right, run.passed), (left, run.left_out)) if names],
        "is_over": run.is_over,
    }


def _findings(findings: list[Finding]) -> Iterator[tuple[str, str, str, str]]:
    """Of each the level, the id, what is wrong and what to do."""
    for finding in findings:
        kind, word = _LEVELS[finding.level]
        yield badge(kind, str(word)), plain(finding.id), _told(finding.text), _told(finding.fix)


def _told(text: str) -> str:
    """What the database or the doctor says; a driver's words may be long."""
    return plain(text, TOLD_CHARS)


PAGE = SitePage("settings", _("Settings and checks"), VIEW, settings_view)
