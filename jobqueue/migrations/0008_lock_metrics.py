import jobqueue.db.clock
import jobqueue.db.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('jobqueue', '0007_ordering_key'),
    ]

    operations = [
        migrations.CreateModel(
            name='LockFinding',
            fields=[
                ('id', jobqueue.db.fields.TokenField(primary_key=True, serialize=False)),
                ('kind', jobqueue.db.fields.NameField(choices=[('deadlock', 'deadlock'), ('wait', 'lock wait'), ('slow', 'slow locking statement'), ('ttl', 'lock shorter than its job')], max_length=16, verbose_name='kind')),
                ('first_seen_at', jobqueue.db.fields.UtcDateTimeField(db_default=jobqueue.db.clock.UtcNow(), verbose_name='first seen')),
                ('last_seen_at', jobqueue.db.fields.UtcDateTimeField(db_default=jobqueue.db.clock.UtcNow(), verbose_name='last seen')),
                ('seconds', models.FloatField(null=True, verbose_name='seconds')),
                ('detail', models.JSONField(verbose_name='details')),
            ],
            options={
                'verbose_name': 'lock finding',
                'verbose_name_plural': 'lock findings',
                'db_table': 'job_lock_finding',
                'default_permissions': ('view',),
                'indexes': [models.Index(fields=['kind', 'last_seen_at'], name='ix_lock_finding_kind'), models.Index(fields=['last_seen_at'], name='ix_lock_finding_age')],
            },
        ),
        migrations.CreateModel(
            name='LockStat',
            fields=[
                ('id', jobqueue.db.fields.TokenField(primary_key=True, serialize=False)),
                ('counted_at', jobqueue.db.fields.UtcDateTimeField(db_default=jobqueue.db.clock.UtcNow(), verbose_name='counted at')),
                ('kind', jobqueue.db.fields.NameField(max_length=16, verbose_name='kind of lock')),
                ('lock_key', jobqueue.db.fields.NameField(max_length=255, verbose_name='lock key')),
                ('acquired', models.BigIntegerField(default=0, verbose_name='acquired')),
                ('contended', models.BigIntegerField(default=0, verbose_name='had to wait')),
                ('failed', models.BigIntegerField(default=0, verbose_name='not acquired')),
                ('released', models.BigIntegerField(default=0, verbose_name='released')),
                ('reentries', models.BigIntegerField(default=0, verbose_name='came back after its end')),
                ('wait_us', models.BigIntegerField(default=0, verbose_name='time waited')),
                ('wait_us_max', models.BigIntegerField(default=0, verbose_name='longest wait')),
                ('held_us', models.BigIntegerField(default=0, verbose_name='time held')),
                ('held_us_max', models.BigIntegerField(default=0, verbose_name='longest hold')),
            ],
            options={
                'verbose_name': 'lock activity',
                'verbose_name_plural': 'lock activity',
                'db_table': 'job_lock_stat',
                'default_permissions': ('view',),
                'indexes': [models.Index(fields=['counted_at'], name='ix_lock_stat_age')],
            },
        ),
    ]
