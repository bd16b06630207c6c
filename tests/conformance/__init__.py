"""The test-suites of Django Tasks, of its backport and of django-tasks-db, run against our backend."""
