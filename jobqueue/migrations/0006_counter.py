import jobqueue.db.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('jobqueue', '0005_outbox'),
    ]

    operations = [
        migrations.CreateModel(
            name='CounterShard',
            fields=[
                ('pk', models.CompositePrimaryKey('counter_key', 'shard', blank=True, editable=False, primary_key=True, serialize=False)),
                ('counter_key', jobqueue.db.fields.NameField(max_length=255, verbose_name='counter')),
                ('shard', models.SmallIntegerField(verbose_name='shard')),
                ('total', models.BigIntegerField(db_default=0, default=0, verbose_name='total')),
            ],
            options={
                'verbose_name': 'counter part',
                'verbose_name_plural': 'counter parts',
                'db_table': 'job_counter',
            },
        ),
    ]
