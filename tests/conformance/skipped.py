"""What of the upstream suites says nothing about our backend, by name of a test or a class, and why."""

DUMMY = "changes the list in memory that the dummy backend keeps"
MESSAGE = "compares a message of Django's base class; the backport's has a small letter"
PICKLE = "tasks can be pickled since Django 6.1; the backport has no code for it"
COLUMNS = "writes or reads columns of their model; test_django_tasks.py has the same on our table"
UUIDS = "their ids are UUIDs, ours are numbers; the rest of it is in Django's suite too"
ID_FUNCTION = "their option id_function; the database makes our ids"
CANNOT = "what the immediate backend cannot do, and this one can"
CLASS = "expects TypeError itself; a result that cannot be stored is our ResultError, which is one"
COMMAND = "their command db_worker; the worker is tested in tests/process"

DJANGO = {
    "DummyBackendTestCase.test_refresh_result": DUMMY,
    "DummyBackendTestCase.test_refresh_result_async": DUMMY,
}
BACKPORT = {
    **DJANGO,
    "DummyBackendTestCase.test_validate_disallowed_async_task": MESSAGE,
    "TaskTestCase.test_run_after_in_decorator": "the message is new in Django 6.1; the backport refuses run_after, too",
    "TaskTestCase.test_pickle_task": PICKLE,
    "TaskTestCase.test_pickle_task_result": PICKLE,
    "TaskTestCase.test_unpickle_arbitrary_string": PICKLE,
    "TaskTestCase.test_unpickle_non_task_object": PICKLE,
}
DJANGO_TASKS_DB = {
    "DatabaseBackendTestCase.test_enqueue_task": UUIDS,
    "DatabaseBackendTestCase.test_enqueue_task_async": UUIDS,
    "DatabaseBackendTestCase.test_refresh_result": COLUMNS,
    "DatabaseBackendTestCase.test_refresh_result_async": COLUMNS,
    "DatabaseBackendTestCase.test_invalid_task_path": COLUMNS,
    "DatabaseBackendTestCase.test_missing_task_path": COLUMNS,
    "DatabaseBackendTestCase.test_task_name": COLUMNS,
    "DatabaseBackendTestCase.test_priority_range_check": COLUMNS,
    "DatabaseBackendTestCase.test_run_after_tz": COLUMNS,
    "DatabaseBackendTestCase.test_run_after_null_0016_migration": COLUMNS,
    "DatabaseBackendTestCase.test_database_backend_app_missing": "the hint names their app; ours is in test_checks.py",
    "DatabaseBackendTestCase.test_index_scan_for_ready": "names their index; ours are in tests/plans",
    "DatabaseBackendTestCase.test_custom_id_function": ID_FUNCTION,
    "DatabaseBackendTestCase.test_unknown_id_function": ID_FUNCTION,
    "DatabaseBackendTestCase.test_postgres_db_id_function": ID_FUNCTION,
    "DatabaseBackendTestCase.test_postgres_id_function_expression": ID_FUNCTION,
    "DatabaseBackendWorkerTestCase": COMMAND,
    "DatabaseWorkerProcessTestCase": COMMAND,
    "DatabaseTaskResultTestCase": "the locking queries of their model; ours are in tests/races and tests/plans",
    "ConnectionExclusiveTranscationTestCase": "a helper of theirs for SQLite",
    "DatabaseBackendPruneTaskResultsTestCase": "their command prune_db_task_results",
    "CompatTestCase": "which Django Tasks their compat.py found",
    "DBTaskResultOrderingTestCase": "the default order of their model",
    "AdminTestCase": "their admin pages; ours are in tests/admin",
}
RUNNING = {
    "ImmediateBackendTestCase.test_cannot_get_result": CANNOT,
    "ImmediateBackendTestCase.test_cannot_refresh_result": CANNOT,
    "ImmediateBackendTestCase.test_cannot_pass_run_after": CANNOT,
    "ImmediateBackendTestCase.test_throws_keyboard_interrupt": "a worker records what the job raised and goes on",
    "ImmediateBackendTestCase.test_complex_return_value": CLASS,
    "ImmediateBackendTransactionTestCase": "runs the task inside the caller's transaction; a claim refuses that",
}
SUITES = {
    "django": DJANGO,
    "django, running": RUNNING,
    "backport": BACKPORT,
    "backport, running": RUNNING,
    "django-tasks-db": DJANGO_TASKS_DB,
}
