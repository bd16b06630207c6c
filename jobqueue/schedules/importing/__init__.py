"""Makes schedules of the rows of django-celery-beat or django-q2, which need not be installed."""
