"""The Django admin: pages show state and offer verbs such as retry; they edit no rows. They run in web processes.

`page` holds what all pages share; each list with its pages has a room or a file named after what it shows.
"""

from django.apps import apps
from django.contrib import admin

from jobqueue.admin.audit.audit_admin import AuditEventAdmin
from jobqueue.admin.dead_letters.failures import FailureNoteAdmin
from jobqueue.admin.dead_letters.redrive_admin import RedriveAdmin
from jobqueue.admin.groups.group_admin import GroupAdmin
from jobqueue.admin.idempotency import IdempotencyRecordAdmin
from jobqueue.admin.jobs.job_admin import JobAdmin
from jobqueue.admin.lock_activity import LockActivityAdmin
from jobqueue.admin.lock_lists import LockAdmin, MutexAdmin
from jobqueue.admin.metrics import PAGE as METRICS_PAGE
from jobqueue.admin.outbox import OutboxEventAdmin
from jobqueue.admin.queues.queue_admin import QueueAdmin
from jobqueue.admin.schedules.schedule_admin import ScheduleAdmin
from jobqueue.admin.settings import PAGE as SETTINGS_PAGE
from jobqueue.admin.workers import WorkerAdmin

__all__ = [
    "AuditEventAdmin",
    "FailureNoteAdmin",
    "GroupAdmin",
    "IdempotencyRecordAdmin",
    "JobAdmin",
    "LockActivityAdmin",
    "LockAdmin",
    "MutexAdmin",
    "OutboxEventAdmin",
    "QueueAdmin",
    "RedriveAdmin",
    "ScheduleAdmin",
    "WorkerAdmin",
    "add_to",
]
_PAGES = (METRICS_PAGE, SETTINGS_PAGE)

for _page in _PAGES:
    _page.add_to(admin.site)


def add_to(site: admin.AdminSite) -> None:
    """Serve all pages of the dashboard on another admin site, too. Call it once for a site, in an admin.py.

    The pages of a site link to pages of the same site. Raises AlreadyRegistered if it has one of the models.
    """
    for model in apps.get_app_config("jobqueue").get_models():
        if admin.site.is_registered(model):
            site.register(model, type(admin.site.get_model_admin(model)))
    for page in _PAGES:
        page.add_to(site)
