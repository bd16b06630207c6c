from django.db import migrations, models
from django.db.models import F, Q
from django.db.models.functions import Coalesce

LEASE = ("locked_by", "lock_token", "locked_at", "lock_until")


def given(is_given):
    return Q(**{f"{column}__isnull": not is_given for column in LEASE})


def tidy(apps, schema_editor):
    """Rows that other programs have written: a lease on a job that is not held goes, a missing time of claim comes."""
    jobs = apps.get_model("jobqueue", "Job").objects.using(schema_editor.connection.alias)
    jobs.exclude(status=1).exclude(given(False)).update(**dict.fromkeys(LEASE))
    jobs.filter(status=1, locked_at__isnull=True).update(locked_at=Coalesce(F("last_started_at"), F("updated_at")))


class Migration(migrations.Migration):

    dependencies = [
        ('jobqueue', '0008_lock_metrics'),
    ]

    operations = [
        migrations.RunPython(tidy, migrations.RunPython.noop),
        migrations.RemoveConstraint(
            model_name='job',
            name='ck_job_lease',
        ),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(models.Q(('lock_token__isnull', False), ('lock_until__isnull', False), ('locked_at__isnull', False), ('locked_by__isnull', False)), ('status', 1)), models.Q(models.Q(('status', 1), _negated=True), models.Q(('lock_token__isnull', True), ('lock_until__isnull', True), ('locked_at__isnull', True), ('locked_by__isnull', True))), _connector='OR'), name='ck_job_lease'),
        ),
    ]
