
import jobqueue.db.clock
import jobqueue.db.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='Job',
            fields=[
                ('id', jobqueue.db.fields.UnsignedBigAutoField(primary_key=True, serialize=False)),
                ('queue', jobqueue.db.fields.NameField(max_length=64, verbose_name='queue')),
                ('status', jobqueue.db.fields.TinyIntegerField(choices=[(0, 'ready'), (1, 'processing'), (2, 'done'), (3, 'failed'), (4, 'canceled')], db_default=0, default=0, verbose_name='status')),
                ('priority', models.IntegerField(db_default=0, verbose_name='priority')),
                ('run_at', jobqueue.db.fields.UtcDateTimeField(db_default=jobqueue.db.clock.UtcNow(), verbose_name='run at')),
                ('attempts', models.IntegerField(db_default=0, verbose_name='attempts')),
                ('max_attempts', models.IntegerField(db_default=25, verbose_name='max attempts')),
                ('payload', jobqueue.db.fields.PayloadField(verbose_name='payload')),
                ('result', jobqueue.db.fields.PayloadField(null=True, verbose_name='result')),
                ('last_error', jobqueue.db.fields.ErrorField(null=True, verbose_name='last error')),
                ('cause', jobqueue.db.fields.NameField(max_length=16, null=True, verbose_name='cause')),
                ('locked_by', jobqueue.db.fields.NameField(max_length=128, null=True, verbose_name='locked by')),
                ('lock_token', jobqueue.db.fields.TokenField(null=True, verbose_name='lock token')),
                ('locked_at', jobqueue.db.fields.UtcDateTimeField(null=True, verbose_name='locked at')),
                ('lock_until', jobqueue.db.fields.UtcDateTimeField(null=True, verbose_name='lock until')),
                ('lease_seconds', models.FloatField(null=True, verbose_name='lease seconds')),
                ('fence', models.BigIntegerField(db_default=0, verbose_name='fence')),
                ('dedupe_key', jobqueue.db.fields.KeyField(null=True, verbose_name='dedupe key')),
                ('released_key', jobqueue.db.fields.KeyField(null=True, verbose_name='released key')),
                ('task', jobqueue.db.fields.NameField(max_length=255, null=True, verbose_name='task')),
                ('gate', jobqueue.db.fields.TinyIntegerField(db_default=0, verbose_name='gate')),
                ('wait_reason', jobqueue.db.fields.NameField(max_length=200, null=True, verbose_name='wait reason')),
                ('allowance', models.IntegerField(null=True, verbose_name='allowance')),
                ('crashes', models.IntegerField(db_default=0, verbose_name='crashes')),
                ('epoch', models.IntegerField(db_default=0, verbose_name='epoch')),
                ('cancel_requested_at', jobqueue.db.fields.UtcDateTimeField(null=True, verbose_name='cancel requested at')),
                ('last_started_at', jobqueue.db.fields.UtcDateTimeField(null=True, verbose_name='last started at')),
                ('last_worker', jobqueue.db.fields.NameField(max_length=128, null=True, verbose_name='last worker')),
                ('created_at', jobqueue.db.fields.UtcDateTimeField(db_default=jobqueue.db.clock.UtcNow(), verbose_name='created at')),
                ('updated_at', jobqueue.db.fields.UtcDateTimeField(db_default=jobqueue.db.clock.UtcNow(), verbose_name='updated at')),
                ('finished_at', jobqueue.db.fields.UtcDateTimeField(null=True, verbose_name='finished at')),
            ],
            options={
                'verbose_name': 'job',
                'verbose_name_plural': 'jobs',
                'db_table': 'job_queue',
                'permissions': [('retry_job', 'Can retry jobs'), ('cancel_job', 'Can cancel jobs'), ('discard_job', 'Can discard jobs'), ('release_job', 'Can release leases'), ('view_payload', 'Can view payloads and results'), ('pause_queue', 'Can pause queues')],
                'indexes': [models.Index(fields=['queue', 'status', 'gate', 'priority', 'run_at', 'id'], name='ix_pick'), models.Index(fields=['status', 'lock_until'], name='ix_lease'), models.Index(fields=['locked_by', 'status'], name='ix_worker')],
                'constraints': [models.UniqueConstraint(fields=('queue', 'dedupe_key'), name='uq_queue_dedupe'), models.CheckConstraint(condition=models.Q(('status__range', (0, 4))), name='ck_job_status'), models.CheckConstraint(condition=models.Q(models.Q(('status', 1), _negated=True), models.Q(('lock_token__isnull', False), ('lock_until__isnull', False), ('locked_by__isnull', False)), _connector='OR'), name='ck_job_lease')],
            },
        ),
        migrations.CreateModel(
            name='JobAttempt',
            fields=[
                ('id', jobqueue.db.fields.UnsignedBigAutoField(primary_key=True, serialize=False)),
                ('job_id', jobqueue.db.fields.JobIdField(verbose_name='job')),
                ('attempt', models.IntegerField(verbose_name='attempt')),
                ('fence', models.BigIntegerField(verbose_name='fence')),
                ('worker', jobqueue.db.fields.NameField(max_length=128, null=True, verbose_name='worker')),
                ('started_at', jobqueue.db.fields.UtcDateTimeField(null=True, verbose_name='started at')),
                ('ended_at', jobqueue.db.fields.UtcDateTimeField(db_default=jobqueue.db.clock.UtcNow(), verbose_name='ended at')),
                ('cause', jobqueue.db.fields.NameField(max_length=16, verbose_name='cause')),
                ('error_class', jobqueue.db.fields.NameField(default='', max_length=255, verbose_name='error class')),
                ('error', jobqueue.db.fields.ErrorField(verbose_name='error')),
            ],
            options={
                'verbose_name': 'attempt',
                'verbose_name_plural': 'attempts',
                'db_table': 'job_attempt',
                'indexes': [models.Index(fields=['job_id', 'id'], name='ix_attempt_job')],
            },
        ),
        migrations.CreateModel(
            name='Worker',
            fields=[
                ('id', jobqueue.db.fields.UnsignedBigAutoField(primary_key=True, serialize=False)),
                ('name', jobqueue.db.fields.NameField(max_length=128, verbose_name='name')),
                ('host', jobqueue.db.fields.NameField(max_length=255, verbose_name='host')),
                ('pid', models.BigIntegerField(verbose_name='pid')),
                ('supervisor_pid', models.BigIntegerField(verbose_name='supervisor pid')),
                ('boot_id', jobqueue.db.fields.NameField(max_length=32, verbose_name='boot id')),
                ('queues', jobqueue.db.fields.NameField(max_length=1000, verbose_name='queues')),
                ('concurrency', models.IntegerField(verbose_name='concurrency')),
                ('version', jobqueue.db.fields.NameField(max_length=32, verbose_name='version')),
                ('started_at', jobqueue.db.fields.UtcDateTimeField(db_default=jobqueue.db.clock.UtcNow(), verbose_name='started at')),
                ('heartbeat_at', jobqueue.db.fields.UtcDateTimeField(db_default=jobqueue.db.clock.UtcNow(), verbose_name='last heartbeat')),
                ('stopped_at', jobqueue.db.fields.UtcDateTimeField(null=True, verbose_name='stopped at')),
                ('stop_reason', jobqueue.db.fields.NameField(default='', max_length=200, verbose_name='stop reason')),
            ],
            options={
                'verbose_name': 'worker',
                'verbose_name_plural': 'workers',
                'db_table': 'job_worker',
                'indexes': [models.Index(fields=['stopped_at', 'heartbeat_at'], name='ix_worker_alive')],
                'constraints': [models.UniqueConstraint(fields=('name',), name='uq_worker_name')],
            },
        ),
    ]
