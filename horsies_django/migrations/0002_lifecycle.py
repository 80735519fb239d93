import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('horsies_django', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Lease',
            fields=[
                ('name', models.CharField(max_length=100, primary_key=True, serialize=False, verbose_name='name')),
                ('holder', models.CharField(blank=True, max_length=64, verbose_name='holder')),
                ('renewed_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name='renewed at')),
            ],
            options={
                'verbose_name': 'lease',
                'verbose_name_plural': 'leases',
                'db_table': 'horsies_leases',
            },
        ),
        migrations.AddField(
            model_name='task',
            name='checkpoint',
            field=models.JSONField(blank=True, help_text="Saved for the next attempt.", null=True, verbose_name='checkpoint'),
        ),
        migrations.AddField(
            model_name='task',
            name='kept_until',
            field=models.DateTimeField(blank=True, help_text="The reaper deletes the task then. Empty: never.", null=True, verbose_name='kept until'),
        ),
        migrations.AddField(
            model_name='task',
            name='progress',
            field=models.JSONField(blank=True, help_text="As reported by the task.", null=True, verbose_name='progress'),
        ),
        migrations.AddIndex(
            model_name='task',
            index=models.Index(condition=models.Q(('kept_until__isnull', False)), fields=['kept_until'], name='horsies_task_kept_until'),
        ),
    ]
