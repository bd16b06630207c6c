from django.db import migrations, models

from jobqueue.db import fields, vendor_of
from jobqueue.db.clock import UtcNow


class AddIndexWhereUpdatesStay(migrations.AddIndex):
    """AddIndex, except where an UPDATE of an indexed column adds an entry to every index of the row.

    There a lock that is taken again and again became slower with each turn while a snapshot was open. The sweeper scans
    the table instead: it is small.
    """

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        if not vendor_of(schema_editor.connection).copies_updated_rows:
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label, schema_editor, from_state, to_state):
        if not vendor_of(schema_editor.connection).copies_updated_rows:
            super().database_backwards(app_label, schema_editor, from_state, to_state)


class AddIndexOfDeadLetters(migrations.RunSQL):
    """An index of FAILED jobs by their ids, where ix_lease does not have them in this order.

    It has an entry of no other job, so claims and acks do not write to it.
    """

    def __init__(self):
        # In this form, because indexes on the status can then not serve the condition.
        create = "CREATE INDEX ix_dead ON job_queue (id) WHERE (status + 0) = 3"
        super().__init__(create, "DROP INDEX ix_dead")

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        if not vendor_of(schema_editor.connection).indexes_end_with_key:
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label, schema_editor, from_state, to_state):
        if not vendor_of(schema_editor.connection).indexes_end_with_key:
            super().database_backwards(app_label, schema_editor, from_state, to_state)


class Migration(migrations.Migration):

    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name='Job',
            fields=[
                ('id', fields.UnsignedBigAutoField(primary_key=True, serialize=False)),
                ('queue', fields.NameField(max_length=64, verbose_name='queue')),
                ('status', fields.TinyIntegerField(choices=[(0, 'ready'), (1, 'processing'), (2, 'done'), (3, 'failed'), (4, 'canceled')], db_default=0, default=0, verbose_name='status')),
                ('priority', models.IntegerField(db_default=0, verbose_name='priority')),
                ('run_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='run at')),
                ('attempts', models.IntegerField(db_default=0, verbose_name='attempts')),
                ('max_attempts', models.IntegerField(db_default=25, verbose_name='max attempts')),
                ('payload', fields.PayloadField(verbose_name='payload')),
                ('result', fields.PayloadField(null=True, verbose_name='result')),
                ('last_error', fields.ErrorField(null=True, verbose_name='last error')),
                ('cause', fields.NameField(max_length=16, null=True, verbose_name='cause')),
                ('fingerprint', fields.NameField(max_length=16, null=True, verbose_name='fingerprint')),
                ('locked_by', fields.NameField(max_length=128, null=True, verbose_name='locked by')),
                ('lock_token', fields.TokenField(null=True, verbose_name='lock token')),
                ('locked_at', fields.UtcDateTimeField(null=True, verbose_name='locked at')),
                ('lock_until', fields.UtcDateTimeField(null=True, verbose_name='lock until')),
                ('lease_seconds', models.FloatField(null=True, verbose_name='lease seconds')),
                ('fence', models.BigIntegerField(db_default=0, verbose_name='fence')),
                ('expires_at', fields.UtcDateTimeField(null=True, verbose_name='expires at')),
                ('options', fields.PayloadField(null=True, verbose_name='options')),
                ('progress', fields.PayloadField(null=True, verbose_name='progress')),
                ('dedupe_key', fields.KeyField(null=True, verbose_name='dedupe key')),
                ('released_key', fields.KeyField(null=True, verbose_name='released key')),
                ('unique_mode', fields.TinyIntegerField(db_default=0, verbose_name='unique mode')),
                ('unique_seconds', models.FloatField(null=True, verbose_name='unique seconds')),
                ('ordering_key', fields.KeyField(null=True, verbose_name='ordering key')),
                ('concurrency_key', fields.KeyField(null=True, verbose_name='concurrency key')),
                ('task', fields.NameField(max_length=255, null=True, verbose_name='task')),
                ('dependency', fields.NameField(max_length=64, null=True, verbose_name='dependency')),
                ('gate', fields.TinyIntegerField(db_default=0, verbose_name='gate')),
                ('wait_reason', fields.NameField(max_length=200, null=True, verbose_name='wait reason')),
                ('allowance', models.IntegerField(null=True, verbose_name='allowance')),
                ('crashes', models.IntegerField(db_default=0, verbose_name='crashes')),
                ('epoch', models.IntegerField(db_default=0, verbose_name='epoch')),
                ('cancel_requested_at', fields.UtcDateTimeField(null=True, verbose_name='cancel requested at')),
                ('last_started_at', fields.UtcDateTimeField(null=True, verbose_name='last started at')),
                ('last_worker', fields.NameField(max_length=128, null=True, verbose_name='last worker')),
                ('created_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='created at')),
                ('updated_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='updated at')),
                ('finished_at', fields.UtcDateTimeField(null=True, verbose_name='finished at')),
            ],
            options={
                'verbose_name': 'job',
                'verbose_name_plural': 'jobs',
                'db_table': 'job_queue',
                'permissions': [('retry_job', 'Can retry jobs'), ('cancel_job', 'Can cancel jobs'), ('discard_job', 'Can discard jobs'), ('release_job', 'Can release leases'), ('prune_jobs', 'Can delete ended jobs'), ('view_payload', 'Can view payloads and results')],
                'indexes': [models.Index(fields=['queue', 'status', 'gate', 'priority', 'run_at', 'id'], name='ix_pick'), models.Index(fields=['status', 'lock_until'], name='ix_lease'), models.Index(fields=['locked_by', 'status'], name='ix_worker')],
                'constraints': [models.UniqueConstraint(fields=('queue', 'dedupe_key'), name='uq_queue_dedupe'), models.CheckConstraint(condition=models.Q(('status__range', (0, 4))), name='ck_job_status'), models.CheckConstraint(condition=models.Q(models.Q(models.Q(('lock_token__isnull', False), ('lock_until__isnull', False), ('locked_at__isnull', False), ('locked_by__isnull', False)), ('status', 1)), models.Q(models.Q(('status', 1), _negated=True), models.Q(('lock_token__isnull', True), ('lock_until__isnull', True), ('locked_at__isnull', True), ('locked_by__isnull', True))), _connector='OR'), name='ck_job_lease')],
            },
        ),
        migrations.CreateModel(
            name='JobAttempt',
            fields=[
                ('id', fields.UnsignedBigAutoField(primary_key=True, serialize=False)),
                ('job_id', fields.JobIdField(verbose_name='job')),
                ('attempt', models.IntegerField(verbose_name='attempt')),
                ('fence', models.BigIntegerField(verbose_name='fence')),
                ('worker', fields.NameField(max_length=128, null=True, verbose_name='worker')),
                ('started_at', fields.UtcDateTimeField(null=True, verbose_name='started at')),
                ('ended_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='ended at')),
                ('cause', fields.NameField(max_length=16, verbose_name='cause')),
                ('fingerprint', fields.NameField(max_length=16, null=True, verbose_name='fingerprint')),
                ('error_class', fields.NameField(default='', max_length=255, verbose_name='error class')),
                ('error', fields.ErrorField(verbose_name='error')),
                ('log', fields.ErrorField(null=True, verbose_name='log')),
            ],
            options={
                'verbose_name': 'attempt',
                'verbose_name_plural': 'attempts',
                'db_table': 'job_attempt',
                'indexes': [models.Index(fields=['job_id', 'id'], name='ix_attempt_job')],
            },
        ),
        migrations.CreateModel(
            name='LaneEntry',
            fields=[
                ('id', fields.UnsignedBigAutoField(primary_key=True, serialize=False)),
                ('lane', models.BigIntegerField(verbose_name='lane')),
                ('halted', models.BooleanField(db_default=False, default=False, verbose_name='halted')),
                ('job', models.OneToOneField(db_constraint=False, null=True, on_delete=models.DO_NOTHING, related_name='+', to='jobqueue.job')),
            ],
            options={
                'verbose_name': 'lane entry',
                'verbose_name_plural': 'lane entries',
                'db_table': 'job_lane',
                'indexes': [models.Index(fields=['lane', 'id'], name='ix_lane_entry')],
            },
        ),
        migrations.CreateModel(
            name='OrderingKey',
            fields=[
                ('digest', fields.KeyField(primary_key=True, serialize=False, verbose_name='digest')),
                ('created_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='created at')),
            ],
            options={
                'verbose_name': 'ordering key',
                'verbose_name_plural': 'ordering keys',
                'db_table': 'job_ordering_key',
                'indexes': [models.Index(fields=['created_at'], name='ix_ordering_key_age')],
            },
        ),
        migrations.CreateModel(
            name='Worker',
            fields=[
                ('id', fields.UnsignedBigAutoField(primary_key=True, serialize=False)),
                ('name', fields.NameField(max_length=128, verbose_name='name')),
                ('host', fields.NameField(max_length=255, verbose_name='host')),
                ('pid', models.BigIntegerField(verbose_name='pid')),
                ('supervisor_pid', models.BigIntegerField(verbose_name='supervisor pid')),
                ('boot_id', fields.NameField(max_length=32, verbose_name='boot id')),
                ('queues', fields.NameField(max_length=1000, verbose_name='queues')),
                ('concurrency', models.IntegerField(verbose_name='concurrency')),
                ('version', fields.NameField(max_length=32, verbose_name='version')),
                ('started_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='started at')),
                ('heartbeat_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='last heartbeat')),
                ('heartbeat_seconds', models.FloatField(null=True, verbose_name='seconds between heartbeats')),
                ('retries', fields.PayloadField(null=True, verbose_name='retries by task')),
                ('gates', fields.PayloadField(null=True, verbose_name='limits that it knows')),
                ('schedules', fields.PayloadField(null=True, verbose_name='schedules that it announces')),
                ('stopped_at', fields.UtcDateTimeField(null=True, verbose_name='stopped at')),
                ('stop_reason', fields.NameField(default='', max_length=200, verbose_name='stop reason')),
            ],
            options={
                'verbose_name': 'worker',
                'verbose_name_plural': 'workers',
                'db_table': 'job_worker',
                'indexes': [models.Index(fields=['stopped_at', 'heartbeat_at'], name='ix_worker_alive')],
                'constraints': [models.UniqueConstraint(fields=('name',), name='uq_worker_name')],
            },
        ),
        migrations.CreateModel(
            name='IdempotencyRecord',
            fields=[
                ('digest', fields.KeyField(primary_key=True, serialize=False, verbose_name='digest')),
                ('label', fields.NameField(max_length=255, verbose_name='key')),
                ('fingerprint', fields.KeyField(null=True, verbose_name='fingerprint')),
                ('result', fields.PayloadField(null=True, verbose_name='result')),
                ('created_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='created at')),
                ('expires_at', fields.UtcDateTimeField(verbose_name='expires at')),
            ],
            options={
                'verbose_name': 'idempotency record',
                'verbose_name_plural': 'idempotency records',
                'db_table': 'job_idempotency',
                'indexes': [models.Index(fields=['expires_at'], name='ix_idempotency_expiry')],
            },
        ),
        migrations.CreateModel(
            name='Allocation',
            fields=[
                ('id', fields.UnsignedBigAutoField(primary_key=True, serialize=False)),
                ('table_label', fields.NameField(max_length=255, verbose_name='table')),
                ('request_id', fields.KeyField(verbose_name='request id')),
                ('row_ids', models.JSONField(verbose_name='row ids')),
                ('created_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='created at')),
            ],
            options={
                'verbose_name': 'allocation',
                'verbose_name_plural': 'allocations',
                'db_table': 'job_allocation',
                'constraints': [models.UniqueConstraint(fields=('table_label', 'request_id'), name='uq_allocation_request')],
            },
        ),
        migrations.CreateModel(
            name='CounterShard',
            fields=[
                ('pk', models.CompositePrimaryKey('counter_key', 'shard', blank=True, editable=False, primary_key=True, serialize=False)),
                ('counter_key', fields.NameField(max_length=255, verbose_name='counter')),
                ('shard', models.SmallIntegerField(verbose_name='shard')),
                ('total', models.BigIntegerField(db_default=0, default=0, verbose_name='total')),
            ],
            options={
                'verbose_name': 'counter part',
                'verbose_name_plural': 'counter parts',
                'db_table': 'job_counter',
            },
        ),
        migrations.CreateModel(
            name='MutexRow',
            fields=[
                ('lock_key', fields.NameField(max_length=255, primary_key=True, serialize=False, verbose_name='lock key')),
                ('takes', models.BigIntegerField(db_default=0, default=0, verbose_name='times taken')),
                ('created_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='created at')),
                ('taken_at', fields.UtcDateTimeField(null=True, verbose_name='taken at')),
            ],
            options={
                'verbose_name': 'mutex',
                'verbose_name_plural': 'mutexes',
                'db_table': 'job_mutex',
            },
        ),
        migrations.CreateModel(
            name='LockRow',
            fields=[
                ('lock_key', fields.NameField(max_length=255, primary_key=True, serialize=False, verbose_name='lock key')),
                ('fence', models.BigIntegerField(verbose_name='fence')),
                ('owner', fields.NameField(max_length=255, verbose_name='owner')),
                ('owner_token', fields.TokenField(null=True, verbose_name='token')),
                ('acquired_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='acquired at')),
                ('expires_at', fields.UtcDateTimeField(verbose_name='expires at')),
            ],
            options={
                'verbose_name': 'lock',
                'verbose_name_plural': 'locks',
                'db_table': 'job_lock',
            },
        ),
        migrations.CreateModel(
            name='FenceFloor',
            fields=[
                ('id', models.SmallIntegerField(primary_key=True, serialize=False)),
                ('fence', models.BigIntegerField(verbose_name='fence')),
            ],
            options={
                'verbose_name': 'fence floor',
                'verbose_name_plural': 'fence floors',
                'db_table': 'job_lock_floor',
            },
        ),
        migrations.CreateModel(
            name='LockStat',
            fields=[
                ('id', fields.TokenField(primary_key=True, serialize=False)),
                ('counted_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='counted at')),
                ('kind', fields.NameField(max_length=16, verbose_name='kind of lock')),
                ('lock_key', fields.NameField(max_length=255, verbose_name='lock key')),
                ('acquired', models.BigIntegerField(default=0, verbose_name='acquired')),
                ('contended', models.BigIntegerField(default=0, verbose_name='had to wait')),
                ('failed', models.BigIntegerField(default=0, verbose_name='not acquired')),
                ('released', models.BigIntegerField(default=0, verbose_name='released')),
                ('reentries', models.BigIntegerField(default=0, verbose_name='expired while held')),
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
        migrations.CreateModel(
            name='RedoneStat',
            fields=[
                ('id', fields.TokenField(primary_key=True, serialize=False)),
                ('last_seen_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='last seen')),
                ('verb', fields.NameField(max_length=32, verbose_name='verb')),
                ('error', fields.NameField(max_length=32, verbose_name='error')),
                ('redone', models.BigIntegerField(default=0, verbose_name='redone')),
                ('given_up', models.BigIntegerField(default=0, verbose_name='given up')),
            ],
            options={
                'verbose_name': 'redone transactions',
                'verbose_name_plural': 'redone transactions',
                'db_table': 'job_redone_stat',
                'default_permissions': (),
                'indexes': [models.Index(fields=['last_seen_at'], name='ix_redone_stat_age')],
            },
        ),
        migrations.CreateModel(
            name='JobStat',
            fields=[
                ('id', fields.TokenField(primary_key=True, serialize=False)),
                ('span', fields.TinyIntegerField(choices=[(0, 'a minute of one process'), (1, 'a minute'), (2, 'an hour'), (3, 'a day')], verbose_name='span')),
                ('begins_at', fields.UtcDateTimeField(verbose_name='begins at')),
                ('queue', fields.NameField(max_length=64, verbose_name='queue')),
                ('task', fields.NameField(max_length=255, verbose_name='task')),
                ('done', models.BigIntegerField(default=0, verbose_name='done')),
                ('retried', models.BigIntegerField(default=0, verbose_name='retried')),
                ('dead', models.BigIntegerField(default=0, verbose_name='dead')),
                ('canceled', models.BigIntegerField(default=0, verbose_name='canceled')),
                ('lost', models.BigIntegerField(default=0, verbose_name='lost')),
                ('runs', models.BigIntegerField(default=0, verbose_name='runs')),
                ('wait_us', models.BigIntegerField(default=0, verbose_name='time waited')),
                ('wait_us_max', models.BigIntegerField(default=0, verbose_name='longest wait')),
                ('run_us', models.BigIntegerField(default=0, verbose_name='time run')),
                ('run_us_max', models.BigIntegerField(default=0, verbose_name='longest run')),
                ('wait_times', models.JSONField(default=dict, verbose_name='waits by length')),
                ('run_times', models.JSONField(default=dict, verbose_name='runs by length')),
            ],
            options={
                'verbose_name': 'job statistics',
                'verbose_name_plural': 'job statistics',
                'db_table': 'job_stat',
                'default_permissions': ('view',),
                'indexes': [models.Index(fields=['span', 'begins_at', 'queue', 'task'], name='ix_job_stat_span'), models.Index(fields=['begins_at'], name='ix_job_stat_age')],
            },
        ),
        migrations.CreateModel(
            name='LockFinding',
            fields=[
                ('id', fields.TokenField(primary_key=True, serialize=False)),
                ('kind', fields.NameField(choices=[('deadlock', 'deadlock'), ('wait', 'lock wait'), ('slow', 'slow locking statement'), ('ttl', 'lock shorter than its job')], max_length=16, verbose_name='kind')),
                ('first_seen_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='first seen')),
                ('last_seen_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='last seen')),
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
            name='OutboxEvent',
            fields=[
                ('id', fields.UnsignedBigAutoField(primary_key=True, serialize=False)),
                ('topic', fields.NameField(max_length=255, verbose_name='topic')),
                ('key', fields.KeyField(null=True, verbose_name='key')),
                ('payload', fields.PayloadField(verbose_name='payload')),
                ('lane', models.BigIntegerField(null=True, verbose_name='lane')),
                ('due_at', fields.UtcDateTimeField(db_default=UtcNow(), null=True, verbose_name='due at')),
                ('lock_token', fields.TokenField(null=True, verbose_name='token')),
                ('attempts', models.IntegerField(db_default=0, default=0, verbose_name='attempts')),
                ('last_error', fields.ErrorField(null=True, verbose_name='last error')),
                ('created_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='created at')),
                ('processed_at', fields.UtcDateTimeField(null=True, verbose_name='processed at')),
                ('failed_at', fields.UtcDateTimeField(null=True, verbose_name='dead letter since')),
            ],
            options={
                'verbose_name': 'outbox event',
                'verbose_name_plural': 'outbox events',
                'db_table': 'job_outbox',
                'indexes': [models.Index(fields=['lane', 'id'], name='ix_outbox_lane'), models.Index(fields=['lane', 'due_at', 'id'], name='ix_outbox_due'), models.Index(fields=['processed_at'], name='ix_outbox_processed'), models.Index(fields=['failed_at'], name='ix_outbox_failed')],
            },
        ),
        migrations.CreateModel(
            name='OutboxKey',
            fields=[
                ('key', fields.KeyField(primary_key=True, serialize=False, verbose_name='key')),
                ('created_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='created at')),
            ],
            options={
                'verbose_name': 'outbox key',
                'verbose_name_plural': 'outbox keys',
                'db_table': 'job_outbox_key',
                'indexes': [models.Index(fields=['created_at'], name='ix_outbox_key_age')],
            },
        ),
        migrations.CreateModel(
            name='Redrive',
            fields=[
                ('id', fields.UnsignedBigAutoField(primary_key=True, serialize=False)),
                ('phase', fields.NameField(choices=[('canary', 'canary'), ('running', 'running'), ('done', 'done'), ('stopped', 'stopped')], max_length=16, verbose_name='state')),
                ('reason', fields.NameField(default='', max_length=200, verbose_name='reason')),
                ('filters', models.JSONField(verbose_name='filter')),
                ('job_limit', models.BigIntegerField(null=True, verbose_name='limit')),
                ('per_second', models.FloatField(null=True, verbose_name='jobs per second')),
                ('canary', models.IntegerField(default=0, verbose_name='canary')),
                ('alone', models.BooleanField(default=False, verbose_name='alone')),
                ('canaries', models.JSONField(default=list, verbose_name='jobs of the canary')),
                ('matched', models.BigIntegerField(verbose_name='matched')),
                ('redriven', models.BigIntegerField(default=0, verbose_name='redriven')),
                ('skipped', models.BigIntegerField(default=0, verbose_name='skipped')),
                ('pending', models.JSONField(default=list, verbose_name='next jobs')),
                ('after_id', models.BigIntegerField(default=0, verbose_name='last job')),
                ('until_id', models.BigIntegerField(verbose_name='newest job')),
                ('paced_at', fields.UtcDateTimeField(null=True, verbose_name='paced until')),
                ('due_at', fields.UtcDateTimeField(db_default=UtcNow(), null=True, verbose_name='next step at')),
                ('steps', models.IntegerField(default=0, verbose_name='steps')),
                ('created_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='created at')),
                ('updated_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='updated at')),
                ('ended_at', fields.UtcDateTimeField(null=True, verbose_name='ended at')),
            ],
            options={
                'verbose_name': 'redrive',
                'verbose_name_plural': 'redrives',
                'db_table': 'job_redrive',
                'default_permissions': ('view',),
                'permissions': [('redrive_jobs', 'Can redrive dead letters')],
                'indexes': [models.Index(fields=['due_at'], name='ix_redrive_due'), models.Index(fields=['ended_at'], name='ix_redrive_ended')],
            },
        ),
        migrations.CreateModel(
            name='FailureNote',
            fields=[
                ('fingerprint', fields.NameField(max_length=16, primary_key=True, serialize=False, verbose_name='fingerprint of the failure')),
                ('note', fields.ErrorField(verbose_name='note')),
                ('author', fields.NameField(default='', max_length=150, verbose_name='written by')),
                ('updated_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='updated at')),
            ],
            options={
                'verbose_name': 'note on a failure',
                'verbose_name_plural': 'notes on failures',
                'db_table': 'job_failure_note',
                'default_permissions': ('view', 'change'),
            },
        ),
        migrations.CreateModel(
            name='ArchivedJob',
            fields=[
                ('id', fields.JobIdField(primary_key=True, serialize=False)),
                ('queue', fields.NameField(max_length=64, verbose_name='queue')),
                ('status', fields.TinyIntegerField(choices=[(0, 'ready'), (1, 'processing'), (2, 'done'), (3, 'failed'), (4, 'canceled')], verbose_name='status')),
                ('priority', models.IntegerField(verbose_name='priority')),
                ('run_at', fields.UtcDateTimeField(verbose_name='run at')),
                ('attempts', models.IntegerField(verbose_name='attempts')),
                ('max_attempts', models.IntegerField(verbose_name='max attempts')),
                ('payload', fields.PayloadField(verbose_name='payload')),
                ('result', fields.PayloadField(null=True, verbose_name='result')),
                ('last_error', fields.ErrorField(null=True, verbose_name='last error')),
                ('cause', fields.NameField(max_length=16, null=True, verbose_name='cause')),
                ('fingerprint', fields.NameField(max_length=16, null=True, verbose_name='fingerprint')),
                ('options', fields.PayloadField(null=True, verbose_name='options')),
                ('progress', fields.PayloadField(null=True, verbose_name='progress')),
                ('dedupe_key', fields.KeyField(null=True, verbose_name='dedupe key')),
                ('ordering_key', fields.KeyField(null=True, verbose_name='ordering key')),
                ('concurrency_key', fields.KeyField(null=True, verbose_name='concurrency key')),
                ('task', fields.NameField(max_length=255, null=True, verbose_name='task')),
                ('dependency', fields.NameField(max_length=64, null=True, verbose_name='dependency')),
                ('crashes', models.IntegerField(verbose_name='crashes')),
                ('last_started_at', fields.UtcDateTimeField(null=True, verbose_name='last started at')),
                ('last_worker', fields.NameField(max_length=128, null=True, verbose_name='last worker')),
                ('created_at', fields.UtcDateTimeField(verbose_name='created at')),
                ('finished_at', fields.UtcDateTimeField(null=True, verbose_name='finished at')),
                ('failures', fields.PayloadField(null=True, verbose_name='attempts that failed')),
                ('archived_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='archived at')),
            ],
            options={
                'verbose_name': 'archived job',
                'verbose_name_plural': 'archived jobs',
                'db_table': 'job_archive',
                'default_permissions': ('view',),
            },
        ),
        migrations.CreateModel(
            name='ResultExpiry',
            fields=[
                ('job_id', fields.JobIdField(primary_key=True, serialize=False, verbose_name='job')),
                ('ttl_seconds', models.FloatField(verbose_name='seconds after the end')),
                ('expires_at', fields.UtcDateTimeField(verbose_name='expires at')),
            ],
            options={
                'verbose_name': 'expiry of a result',
                'verbose_name_plural': 'expiries of results',
                'db_table': 'job_result_expiry',
                'default_permissions': ('view',),
                'indexes': [models.Index(fields=['expires_at'], name='ix_result_expiry')],
            },
        ),
        migrations.CreateModel(
            name='JobTag',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('job_id', fields.JobIdField(verbose_name='job')),
                ('tag', fields.NameField(max_length=64, verbose_name='tag')),
            ],
            options={
                'verbose_name': 'tag of a job',
                'verbose_name_plural': 'tags of jobs',
                'db_table': 'job_tag',
                'default_permissions': ('view',),
                'indexes': [models.Index(fields=['tag', 'job_id'], name='ix_tag'), models.Index(fields=['job_id'], name='ix_tag_job')],
            },
        ),
        AddIndexWhereUpdatesStay(
            model_name='lockrow',
            index=models.Index(fields=['expires_at'], name='ix_lock_expiry'),
        ),
        AddIndexOfDeadLetters(),
        migrations.CreateModel(
            name='BreakerState',
            fields=[
                ('dependency', fields.NameField(max_length=64, primary_key=True, serialize=False, verbose_name='dependency')),
                ('state', fields.NameField(choices=[('closed', 'closed'), ('open', 'open'), ('half-open', 'half-open')], db_default='closed', default='closed', max_length=16, verbose_name='state')),
                ('reason', fields.NameField(db_default='', default='', max_length=200, verbose_name='reason')),
                ('failures', models.IntegerField(db_default=0, default=0, verbose_name='failures')),
                ('window_at', fields.UtcDateTimeField(null=True, verbose_name='window began at')),
                ('since', fields.UtcDateTimeField(null=True, verbose_name='since')),
                ('by_hand', models.BooleanField(db_default=False, default=False, verbose_name='by hand')),
                ('until', fields.UtcDateTimeField(null=True, verbose_name='until')),
                ('probe_at', fields.UtcDateTimeField(null=True, verbose_name='next probe at')),
                ('probe_job', fields.JobIdField(null=True, verbose_name='job of the probe')),
                ('probe_fence', models.BigIntegerField(null=True, verbose_name='fence of the probe')),
                ('turn', models.IntegerField(db_default=0, default=0, verbose_name='turn')),
                ('updated_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='updated at')),
            ],
            options={
                'verbose_name': 'circuit breaker',
                'verbose_name_plural': 'circuit breakers',
                'db_table': 'job_breaker',
                'default_permissions': ('view',),
            },
        ),
        migrations.CreateModel(
            name='GateSlot',
            fields=[
                ('pk', models.CompositePrimaryKey('subject', 'number', blank=True, editable=False, primary_key=True, serialize=False)),
                ('subject', models.BigIntegerField(verbose_name='subject')),
                ('number', models.IntegerField(verbose_name='number')),
                ('job_id', fields.JobIdField(verbose_name='job')),
                ('fence', models.BigIntegerField(verbose_name='fence')),
            ],
            options={
                'verbose_name': 'slot',
                'verbose_name_plural': 'slots',
                'db_table': 'job_gate_slot',
            },
        ),
        migrations.CreateModel(
            name='FlowRule',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('queue', fields.NameField(max_length=64, verbose_name='queue')),
                ('task', fields.NameField(db_default='', default='', max_length=255, verbose_name='task')),
                ('mode', fields.NameField(choices=[('', 'running'), ('paused', 'paused'), ('draining', 'draining')], db_default='', default='', max_length=16, verbose_name='mode')),
                ('reason', fields.NameField(db_default='', default='', max_length=200, verbose_name='reason')),
                ('by', fields.NameField(db_default='', default='', max_length=150, verbose_name='by')),
                ('since', fields.UtcDateTimeField(null=True, verbose_name='since')),
                ('until', fields.UtcDateTimeField(null=True, verbose_name='until')),
                ('sets_concurrency', models.BooleanField(db_default=False, default=False, verbose_name='sets concurrency')),
                ('concurrency', models.IntegerField(null=True, verbose_name='concurrency')),
                ('sets_rate', models.BooleanField(db_default=False, default=False, verbose_name='sets rate')),
                ('rate', fields.NameField(max_length=20, null=True, verbose_name='rate')),
                ('level', models.IntegerField(null=True, verbose_name='present concurrency')),
                ('updated_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='updated at')),
            ],
            options={
                'verbose_name': 'queue',
                'verbose_name_plural': 'queues',
                'db_table': 'job_flow',
                'permissions': [('pause_queue', 'Can pause, drain and resume queues'), ('change_limits', 'Can change limits')],
                'default_permissions': ('view',),
                'constraints': [models.UniqueConstraint(fields=('queue', 'task'), name='uq_flow_queue_task')],
            },
        ),
        migrations.CreateModel(
            name='Gate',
            fields=[
                ('subject', models.BigIntegerField(primary_key=True, serialize=False, verbose_name='subject')),
                ('wait_reason', fields.NameField(max_length=200, verbose_name='wait reason')),
                ('queue', fields.NameField(max_length=64, null=True, verbose_name='queue')),
                ('task', fields.NameField(max_length=255, null=True, verbose_name='task')),
                ('most', models.IntegerField(null=True, verbose_name='slots')),
                ('per_second', models.FloatField(null=True, verbose_name='starts per second')),
                ('used_until', fields.UtcDateTimeField(null=True, verbose_name='used until')),
                ('opens_at', fields.UtcDateTimeField(null=True, verbose_name='opens at')),
                ('updated_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='updated at')),
            ],
            options={
                'verbose_name': 'gate',
                'verbose_name_plural': 'gates',
                'db_table': 'job_gate',
                'indexes': [models.Index(fields=['opens_at'], name='ix_gate_opens'), models.Index(fields=['updated_at'], name='ix_gate_age')],
            },
        ),
        migrations.CreateModel(
            name='GateWait',
            fields=[
                ('job_id', fields.JobIdField(primary_key=True, serialize=False, verbose_name='job')),
                ('subject', models.BigIntegerField(verbose_name='subject')),
                ('urgency', models.BigIntegerField(verbose_name='urgency')),
                ('run_at', fields.UtcDateTimeField(verbose_name='run at')),
            ],
            options={
                'verbose_name': 'waiting job',
                'verbose_name_plural': 'waiting jobs',
                'db_table': 'job_gate_wait',
                'indexes': [models.Index(fields=['subject', 'urgency', 'run_at', 'job_id'], name='ix_gate_wait')],
            },
        ),
        migrations.AddIndex(
            model_name='allocation',
            index=models.Index(fields=['created_at'], name='ix_allocation_age'),
        ),
        migrations.AddIndex(
            model_name='archivedjob',
            index=models.Index(fields=['archived_at'], name='ix_archive_age'),
        ),
        migrations.CreateModel(
            name='Schedule',
            fields=[
                ('id', fields.UnsignedBigAutoField(primary_key=True, serialize=False)),
                ('name', fields.NameField(max_length=255, verbose_name='name')),
                ('source', fields.NameField(choices=[('code', 'code'), ('settings', 'settings'), ('admin', 'admin')], max_length=16, verbose_name='source')),
                ('definition', fields.PayloadField(verbose_name='definition')),
                ('digest', fields.NameField(max_length=32, verbose_name='digest')),
                ('task', fields.NameField(max_length=255, verbose_name='task')),
                ('edited_by', fields.NameField(db_default='', default='', max_length=150, verbose_name='edited by')),
                ('edited', models.BooleanField(db_default=False, default=False, verbose_name='edited')),
                ('announced_digest', fields.NameField(db_default='', default='', max_length=32, verbose_name='announced digest')),
                ('enabled', models.BooleanField(db_default=True, default=True, verbose_name='enabled')),
                ('reason', fields.NameField(db_default='', default='', max_length=200, verbose_name='reason')),
                ('decided_until', fields.UtcDateTimeField(verbose_name='decided until')),
                ('next_at', fields.UtcDateTimeField(null=True, verbose_name='next tick')),
                ('look_at', fields.UtcDateTimeField(null=True, verbose_name='next look at')),
                ('waiting_at', fields.UtcDateTimeField(null=True, verbose_name='waiting since')),
                ('last_tick_at', fields.UtcDateTimeField(null=True, verbose_name='last tick')),
                ('last_job_id', fields.JobIdField(null=True, verbose_name='last job')),
                ('announced_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='last announced at')),
                ('retired_at', fields.UtcDateTimeField(null=True, verbose_name='retired at')),
                ('created_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='created at')),
                ('updated_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='updated at')),
            ],
            options={
                'verbose_name': 'schedule',
                'verbose_name_plural': 'schedules',
                'db_table': 'job_schedule',
                'permissions': [('run_schedule', 'Can run, enable and disable schedules')],
                'indexes': [models.Index(fields=['look_at'], name='ix_schedule_look'), models.Index(fields=['retired_at'], name='ix_schedule_retired')],
                'constraints': [models.UniqueConstraint(fields=('name',), name='uq_schedule_name')],
            },
        ),
        migrations.CreateModel(
            name='ScheduleTick',
            fields=[
                ('id', fields.UnsignedBigAutoField(primary_key=True, serialize=False)),
                ('schedule_id', models.BigIntegerField(verbose_name='schedule')),
                ('tick_at', fields.UtcDateTimeField(verbose_name='tick')),
                ('outcome', fields.NameField(choices=[('fired', 'fired'), ('missed', 'missed'), ('skipped', 'skipped'), ('refused', 'refused'), ('waiting', 'waiting')], max_length=16, verbose_name='outcome')),
                ('ticks', models.IntegerField(db_default=1, default=1, verbose_name='ticks')),
                ('job_id', fields.JobIdField(null=True, verbose_name='job')),
                ('created_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='created at')),
            ],
            options={
                'verbose_name': 'tick',
                'verbose_name_plural': 'ticks',
                'db_table': 'job_schedule_tick',
                'default_permissions': ('view',),
                'indexes': [models.Index(fields=['created_at'], name='ix_schedule_tick_age')],
                'constraints': [models.UniqueConstraint(fields=('schedule_id', 'tick_at'), name='uq_schedule_tick')],
            },
        ),
        migrations.CreateModel(
            name='ScheduleVersion',
            fields=[
                ('id', fields.UnsignedBigAutoField(primary_key=True, serialize=False)),
                ('name', fields.NameField(max_length=255, verbose_name='name')),
                ('digest', fields.NameField(max_length=32, verbose_name='digest')),
                ('source', fields.NameField(max_length=16, verbose_name='source')),
                ('definition', fields.PayloadField(verbose_name='definition')),
                ('seen_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='first seen at')),
                ('announced_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='last announced at')),
            ],
            options={
                'verbose_name': 'version of a schedule',
                'verbose_name_plural': 'versions of schedules',
                'db_table': 'job_schedule_version',
                'default_permissions': ('view',),
                'indexes': [models.Index(fields=['announced_at'], name='ix_schedule_version_age')],
                'constraints': [models.UniqueConstraint(fields=('name', 'digest'), name='uq_schedule_version')],
            },
        ),
        migrations.CreateModel(
            name='JobGroup',
            fields=[
                ('id', fields.UnsignedBigAutoField(primary_key=True, serialize=False)),
                ('name', fields.NameField(max_length=255, verbose_name='name')),
                ('state', fields.TinyIntegerField(choices=[(0, 'open'), (1, 'sealed'), (2, 'ended')], db_default=0, default=0, verbose_name='state')),
                ('if_failed', fields.TinyIntegerField(choices=[(0, 'cancel'), (1, 'continue'), (2, 'hold')], null=True, verbose_name='if failed')),
                ('callbacks', fields.PayloadField(null=True, verbose_name='callbacks')),
                ('total', models.IntegerField(null=True, verbose_name='total')),
                ('done', models.IntegerField(null=True, verbose_name='done')),
                ('failed', models.IntegerField(null=True, verbose_name='failed')),
                ('canceled', models.IntegerField(null=True, verbose_name='canceled')),
                ('canceled_at', fields.UtcDateTimeField(null=True, verbose_name='canceled at')),
                ('created_at', fields.UtcDateTimeField(db_default=UtcNow(), verbose_name='created at')),
                ('sealed_at', fields.UtcDateTimeField(null=True, verbose_name='sealed at')),
                ('ended_at', fields.UtcDateTimeField(null=True, verbose_name='ended at')),
            ],
            options={
                'verbose_name': 'group',
                'verbose_name_plural': 'groups',
                'db_table': 'job_group',
                'default_permissions': ('view',),
                'indexes': [models.Index(fields=['state', 'id'], name='ix_group_state'), models.Index(fields=['ended_at'], name='ix_group_ended')],
            },
        ),
        migrations.CreateModel(
            name='GroupMember',
            fields=[
                ('job_id', fields.JobIdField(primary_key=True, serialize=False, verbose_name='job')),
                ('group_id', models.BigIntegerField(verbose_name='group')),
                ('state', fields.TinyIntegerField(choices=[(0, 'outstanding'), (1, 'done'), (2, 'failed'), (3, 'canceled')], db_default=0, default=0, verbose_name='state')),
                ('name', fields.NameField(max_length=255, null=True, verbose_name='name')),
            ],
            options={
                'verbose_name': 'member of a group',
                'verbose_name_plural': 'members of groups',
                'db_table': 'job_group_member',
                'default_permissions': ('view',),
                'indexes': [models.Index(fields=['group_id', 'state', 'job_id'], name='ix_group_member')],
            },
        ),
        migrations.CreateModel(
            name='GroupParent',
            fields=[
                ('id', fields.UnsignedBigAutoField(primary_key=True, serialize=False)),
                ('group_id', models.BigIntegerField(verbose_name='group')),
                ('child_id', models.BigIntegerField(verbose_name='child')),
                ('parent_id', models.BigIntegerField(verbose_name='parent')),
                ('state', fields.TinyIntegerField(choices=[(0, 'outstanding'), (1, 'done'), (2, 'failed'), (3, 'canceled')], db_default=0, default=0, verbose_name='state')),
            ],
            options={
                'verbose_name': 'parent of a node',
                'verbose_name_plural': 'parents of nodes',
                'db_table': 'job_group_parent',
                'default_permissions': ('view',),
                'indexes': [models.Index(fields=['child_id', 'state', 'id'], name='ix_group_child'), models.Index(fields=['parent_id'], name='ix_group_parent'), models.Index(fields=['group_id'], name='ix_group_of_parent')],
            },
        ),
    ]
