"""The page that changes a job that waits: a form, then what would be changed, then the change."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.models import CHANGE
from django.db import Error, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.text import capfirst
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.jobs.states import ShownJob
from jobqueue.admin.page.addresses import page_address
from jobqueue.admin.page.fields import WIDE, ArgumentsField, MomentField, json_text, tried, with_secrets
from jobqueue.admin.page.formatting import NOTHING, StrOrPromise, plain, stamp
from jobqueue.admin.page.history import log_entry
from jobqueue.admin.page.tables import Table, table_of
from jobqueue.admin.page.verb_admin import VerbAdmin
from jobqueue.base.payload import JSON
from jobqueue.base.validation import INT_MAX, QUEUE_BYTES
from jobqueue.conf import load
from jobqueue.exceptions import InvalidValue, JobQueueError
from jobqueue.models import Job, JobTag
from jobqueue.tasks import registry
from jobqueue.tasks.versions import unchecked_arguments
from jobqueue.transitions.editing import Changes, change, in_words

ARGUMENTS = ("args", "kwargs")
SHOWN_CHARS = 500


class EditForm(forms.Form):
    """What a job that waits has. Call given() after is_valid()."""

    run_at = MomentField(label=_("run at"))
    priority = forms.IntegerField(
        label=_("priority"),
        min_value=-INT_MAX - 1,
        max_value=INT_MAX,
        help_text=_("Jobs with larger numbers run first."),
    )
    queue = forms.CharField(
        label=_("queue"),
        max_length=QUEUE_BYTES,
        widget=forms.TextInput(attrs=WIDE),
        help_text=_("A dedupe key and an ordering key of the job go with it."),
    )
    args = ArgumentsField(list)
    kwargs = ArgumentsField(dict)
    max_attempts = forms.IntegerField(
        label=_("max attempts"), min_value=1, max_value=INT_MAX, help_text=_("With those that it has used.")
    )
    expires = MomentField(label=_("expires at"), required=False)
    tags = forms.CharField(
        label=_("tags"),
        required=False,
        widget=forms.TextInput(attrs=WIDE),
        help_text=_("Separated by commas."),
    )

    def __init__(self, job: Job, tags: list[str], stored: tuple[JSON, JSON] | None, data: Any = None) -> None:
        """`stored`: the arguments; None: the job has none, or this user may not see them."""
        self._stored = dict(zip(ARGUMENTS, stored, strict=True)) if stored else {}
        own = {"run_at": job.run_at, "priority": job.priority, "queue": job.queue, "expires": job.expires_at}
        own |= {"max_attempts": job.max_attempts, "tags": ", ".join(tags)}
        own |= self._stored
        super().__init__(data, initial=own, use_required_attribute=False)
        for name in ARGUMENTS if stored is None else ():
            del self.fields[name]
        for field in self.fields.values():
            field.label = capfirst(str(field.label))
        zone = {"zone": get_current_timezone_name()}
        such_as = gettext("Such as 2026-01-31 18:00 (%(zone)s).") % zone
        self.fields["run_at"].help_text = such_as
        self.fields["expires"].help_text = f"{such_as} {gettext('Empty: it does not expire.')}"

    def clean_args(self) -> JSON:
        """The positional arguments."""
        return self._unmasked("args")

    def clean_kwargs(self) -> JSON:
        """The named arguments."""
        return self._unmasked("kwargs")

    def _unmasked(self, name: str) -> JSON:
        before = self._stored[name]
        return with_secrets(self.cleaned_data[name], before) if name in self.changed_data else before

    def clean_tags(self) -> list[str]:
        """The tags of a text with commas."""
        return [tag for one in self.cleaned_data["tags"].split(",") if (tag := one.strip())]

    def clean(self) -> dict[str, Any]:
        """Refuse a form that changes nothing."""
        if not self.errors and not self.changed_data:
            raise forms.ValidationError(gettext("Nothing differs from what the job has."))
        return self.cleaned_data

    def given(self) -> dict[str, Any]:
        """The fields that were changed, as edit() takes them."""
        names = {*self.changed_data}
        # Together: those that the job has may not be readable.
        names |= {*ARGUMENTS} if names & {*ARGUMENTS} else set()
        return {name: self.cleaned_data[name] for name in self.fields if name in names}


def edit_page(model_admin: VerbAdmin, request: HttpRequest, job: ShownJob, *, shows_content: bool) -> HttpResponse:
    """The page; after a confirmed change, that of the job. The caller has checked the permissions."""
    using, name, page = load().database, model_admin.row_name(job.pk), page_address("job", job.pk)
    if job.status != Job.Status.READY:
        messages.warning(request, gettext("Only a job that waits can be changed."))
        return HttpResponseRedirect(page)
    tags = list(JobTag.objects.using(using).filter(job_id=job.pk).order_by("pk").values_list("tag", flat=True))
    stored = _arguments(job) if shows_content else None
    form = EditForm(job, tags, stored, request.POST if request.method == "POST" else None)
    changes: Table | None = None
    if request.method == "POST" and form.is_valid():
        confirmed, made = request.POST.get("confirm") == "yes", list[Changes]()
        done = tried(request, form, partial(_applied, job.pk, form.given(), made, using, confirmed))
        if confirmed and done is not None:
            _tell(request, job, name, made)
            return HttpResponseRedirect(page)
        changes = _table(made[0]) if made else None
    context = model_admin.admin_site.each_context(request) | {
        "title": gettext("Change %(what)s") % {"what": name},
        "opts": model_admin.opts,
        "page": page,
        "row_name": name,
        "form": form,
        "changes": changes,
        "hides": "" if shows_content else gettext("You may not see its arguments."),
    }
    return TemplateResponse(request, "admin/jobqueue/edit_job.html", context)


def _arguments(job: Job) -> tuple[JSON, JSON] | None:
    """Those that its task takes now; None for a raw row."""
    if job.task is None:
        return None
    list(registry.discover())
    task, payload = registry.find_task(job.task), job.payload
    if task is not None:
        try:
            return unchecked_arguments(task, payload)
        except (JobQueueError, TypeError):
            pass
    known = payload if isinstance(payload, dict) else {}
    return known.get("args", []), known.get("kwargs", {})


def _applied(job_id: int, given: dict[str, Any], made: list[Changes], using: str, confirmed: bool) -> bool:
    """Change the job, or only try to: what would be changed is put into `made`."""
    try:
        if confirmed:
            found = change(job_id, given, using=using)
        else:
            with transaction.atomic(using=using):
                found = change(job_id, given, using=using)
                transaction.set_rollback(True, using=using)
    except (Error, JobQueueError):
        raise
    except Exception as error:
        # A function of the task, such as that of its keys, refuses the arguments.
        what = {"error": plain(f"{type(error).__name__}: {error}", 300)}
        raise InvalidValue(gettext("A job of it cannot be made: %(error)s") % what) from None
    made[:] = [] if found is None else [found]
    if found is None and not confirmed:
        raise InvalidValue(gettext("Only a job that waits can be changed."))
    return found is not None


def _tell(request: HttpRequest, job: Job, name: str, made: list[Changes]) -> None:
    if not made:
        messages.warning(request, gettext("Nothing was changed: the job does not wait any more."))
        return
    log_entry(request, Job, job.pk, name, CHANGE, f"edit: {in_words(made[0])}").save()
    messages.success(request, gettext("The job was changed."))


def _table(changes: Changes) -> Table:
    labels = {name: capfirst(str(field.label)) for name, field in EditForm.base_fields.items()}
    rows = [(labels[name], *(_cell(name, value) for value in values)) for name, values in changes.items()]
    return table_of((_("field"), _("has now"), _("will have")), rows)


def _cell(name: str, value: Any) -> StrOrPromise:
    if isinstance(value, datetime):
        return stamp(value)
    text = ", ".join(value) if name == "tags" else value
    return NOTHING if text in (None, "") else plain(json_text(text) if name in ARGUMENTS else text, SHOWN_CHARS)
