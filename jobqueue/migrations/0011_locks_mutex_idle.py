import jobqueue.db.fields
from django.db import migrations

from jobqueue.db import vendor_of

# Where an UPDATE of an indexed column adds an entry to every index of the row, taking a hot lock became slower with each
# turn while a snapshot was open. The sweeper scans there: the table is small. (The models keep the index for the others:
# a later migration that removes it must pass over such databases.)
_TABLE, _INDEX = "job_lock", "ix_lock_expiry"


def drop_index(apps, schema_editor):
    if vendor_of(schema_editor.connection).copies_updated_rows:
        schema_editor.execute(f"DROP INDEX IF EXISTS {_INDEX}")


def make_index(apps, schema_editor):
    if vendor_of(schema_editor.connection).copies_updated_rows:
        schema_editor.execute(f"CREATE INDEX IF NOT EXISTS {_INDEX} ON {_TABLE} (expires_at)")


class Migration(migrations.Migration):

    dependencies = [
        ('jobqueue', '0010_keeper_heartbeat_seconds'),
    ]

    operations = [
        migrations.AddField(
            model_name='mutexrow',
            name='taken_at',
            field=jobqueue.db.fields.UtcDateTimeField(null=True, verbose_name='taken at'),
        ),
        migrations.RunPython(drop_index, make_index, hints={"model_name": "lockrow"}),
    ]
