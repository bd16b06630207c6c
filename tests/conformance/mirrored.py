"""The worker tests of django-tasks-db, which drive their own command, and the tests of ours that show the same.

A name is `path::test` below tests/. The comment says where our worker does something else on purpose.
"""

LIKE = "process/test_like_django_tasks_db.py::"
RUNS = "process/test_runs.py::"
KILLS = "process/test_kills.py::"
USAGE = "cli/test_usage.py::"
RESULTS = f"{LIKE}test_results_tell_how_each_run_ended_and_a_drain_ends_with_0"
STRANGE = f"{RUNS}test_strange_ends_of_every_kind_leave_the_worker_alive"
NO_DURATION = f"{USAGE}test_a_duration_that_is_none_is_refused"
NO_COUNT = f"{USAGE}test_a_count_that_is_none_is_refused"
REFUSED = f"{USAGE}test_contradictions_and_unknown_words_are_refused"
DATABASE = f"{LIKE}test_a_worker_serves_one_database_and_leaves_the_jobs_of_another"
NO_TASK = f"{RUNS}test_a_dotted_path_that_is_no_task_is_never_imported"
UNKNOWN = f"{RUNS}test_an_unknown_task_is_parked_and_told_and_keeps_its_attempts"
ORDER = f"{LIKE}test_due_jobs_run_by_priority_then_by_age_later_ones_when_due_and_an_idle_worker_leaves_at_once"
SERVES = f"{LIKE}test_a_worker_serves_the_queues_it_is_told_and_says_what_it_ran_and_why_it_leaves"
FROM_ENVIRONMENT = "cli/test_options.py::test_the_environment_gives_defaults"

WORKER = {
    "test_run_enqueued_task": [RESULTS],
    "test_batch_processes_all_tasks": [RESULTS, f"{RUNS}test_drain_runs_everything_once_and_exits_0"],
    "test_no_tasks": [SERVES, f"{RUNS}test_once_with_nothing_due_exits_0"],
    # Without names ours serves all queues, theirs the one named "default".
    "test_doesnt_process_different_queue": [f"{RUNS}test_only_the_named_queues_are_served"],
    "test_process_all_queues": [SERVES, f"{RUNS}test_drain_runs_everything_once_and_exits_0"],
    "test_process_all_queues_excluding_one_queue": [f"{RUNS}test_excluded_queues_are_not_served"],
    # Theirs refuses names beside exclusions; ours takes the excluded away from the named.
    "test_exclude_queues_requires_processing_all_queues": [SERVES],
    "test_excluding_unknown_queue_processes_selected_queues": [SERVES],
    "test_failing_task": [RESULTS],
    "test_complex_exception": [RESULTS],
    # Theirs records TypeError, ours ResultError, which is one.
    "test_complex_return_value": [
        RESULTS,
        f"{RUNS}test_a_result_that_cannot_be_stored_is_failed_at_once_after_one_effect",
    ],
    # Theirs serves one backend of several on a database; ours one database (--database).
    "test_doesnt_process_different_backend": [DATABASE],
    "test_unknown_backend": [REFUSED],
    "test_incorrect_backend": [REFUSED],
    # --interval is our --poll. Zero would be a busy loop and is refused.
    "test_negative_interval": [NO_DURATION],
    "test_infinite_interval": [NO_DURATION],
    "test_fractional_interval": ["cli/test_options.py::test_defaults", FROM_ENVIRONMENT],
    "test_zero_interval": [NO_DURATION],
    "test_negative_max_tasks": [NO_COUNT],
    "test_zero_max_tasks": [NO_COUNT],
    "test_too_long_worker_id": [REFUSED],
    "test_empty_worker_id": [REFUSED],
    "test_run_after": [ORDER, f"{RUNS}test_delayed_jobs_are_left_by_a_drain"],
    "test_run_after_priority": [ORDER],
    "test_verbose_logging": [SERVES, "public/test_logs.py::test_verbosity"],
    # Theirs fails a job whose task it does not know; ours parks it for a worker with other code.
    "test_invalid_task_path": [NO_TASK],
    "test_missing_task_path": [UNKNOWN],
    "test_worker_doesnt_exit_on_failure": [RESULTS, STRANGE],
    "test_worker_with_locked_rows": [f"{LIKE}test_a_drain_passes_by_a_row_that_somebody_has_locked"],
    "test_max_tasks": [SERVES, f"{RUNS}test_max_jobs_stops_after_that_many_starts"],
    "test_takes_context": [RESULTS],
    "test_context": [RESULTS],
    "test_task_import_string": [NO_TASK],
}
PROCESS = {
    "test_run_subprocess": [RESULTS],
    "test_interrupt_no_tasks": [ORDER],
    "test_interrupt_signals": [
        f"{LIKE}test_ctrl_c_lets_the_running_job_finish_under_the_name_it_was_started_with",
        f"{KILLS}test_sigterm_finishes_what_runs_and_gives_the_rest_back_without_an_attempt",
    ],
    # Theirs fails the job and exits 0; ours gives it back, without an attempt, and exits 128 + the signal.
    "test_repeat_ctrl_c": [f"{KILLS}test_the_second_signal_leaves_at_once_and_gives_everything_back"],
    # Theirs leaves the job RUNNING for ever; ours runs it again.
    "test_kill": [f"{KILLS}test_a_killed_group_is_recovered_by_reap_leases_when_the_lease_has_run_out"],
    "test_system_exit_task": [RESULTS],
    "test_keyboard_interrupt_task": [RESULTS],
    "test_multiple_workers": [f"{LIKE}test_three_workers_at_once_run_every_job_once_and_leave"],
}
MIRRORED = {"DatabaseBackendWorkerTestCase": WORKER, "DatabaseWorkerProcessTestCase": PROCESS}
