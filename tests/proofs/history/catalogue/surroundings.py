"""What a worker and a project find around them: apps, drivers, settings, and what the code of jobs leaves behind."""

from __future__ import annotations

from tests.proofs.history.catalogue.mutant import mutant

PROJECTS = [
    mutant(
        "a worker on a database in memory asks for a migration",
        "worker/monitor/preflight.py",
        "_unusable",
        "if is_in_memory(using):",
        "if False:",
        "tests/packaging/test_bare_project.py",
    ),
    mutant(
        "a setting with a misspelt name is not told",
        "checks.py",
        "_misspelt",
        "cutoff=0.8",
        "cutoff=1.0",
        "tests/public/test_checks.py",
    ),
    mutant(
        "Django's check imports the admin's models in a project without the admin",
        "templatetags/jobqueue_admin.py",
        "register",
        "register = template.Library()",
        """from jobqueue.admin.overview import page
register = template.Library()""",
        "tests/packaging/test_bare_project.py",
    ),
    mutant(
        "psycopg2 is not refused",
        "db/postgresql/features.py",
        "driver_problem",
        'name == "psycopg" and numbers >= (3, 2)',
        'name.startswith("psycopg")',
        "tests/worker/test_preflight.py",
    ),
    mutant(
        "the user of a history entry is a number",
        "admin/page/history.py",
        "log_entry",
        "user_id=request.user.pk or 0",
        "user_id=int(request.user.pk)",
        "tests/admin/test_log_entries.py",
    ),
    mutant(
        "a page denies a task whose module it has not imported",
        "explain/states.py",
        "_is_known",
        "or (_import_tasks() and registry.find_task(task) is not None)",
        "",
        "tests/explain/test_states.py",
    ),
    mutant(
        "the wait for a result goes by a clock that tests freeze",
        "tasks/results.py",
        "wait_for",
        "time.clock_gettime(time.CLOCK_MONOTONIC) + limit",
        "time.monotonic() + limit",
        "tests/tasks/test_wait.py",
    ),
]

LEFT_BEHIND = [
    mutant(
        "a job that returns inside a transaction is done",
        "worker/run/perform.py",
        "_call",
        """if not inline:
            check_transactions()""",
        """if inline:
            pass""",
        "tests/worker/test_leftovers.py",
    ),
    mutant(
        "a batch that returns inside a transaction is done",
        "worker/run/perform.py",
        "perform",
        "function if inline else checked(function)",
        "function",
        "tests/worker/test_leftovers.py",
    ),
    mutant(
        "calls of jobs with their own event loop run in the thread of asgiref",
        "worker/run/perform.py",
        "perform",
        "nullcontext() if inline else own_calls()",
        "nullcontext()",
        "tests/worker/test_leftovers.py",
    ),
    mutant(
        "a transaction left open in a job's own event loop does not fail the job",
        "worker/run/call_threads.py",
        "JobThread.left_open",
        "if self._used else []",
        "if not self._used else []",
        "tests/worker/test_leftovers.py",
    ),
    mutant(
        "calls from event loops of other threads are not cleaned",
        "worker/run/call_threads.py",
        "serve_other_threads",
        'AnyThread(max_workers=1, thread_name_prefix="other-calls")',
        "ThreadPoolExecutor(max_workers=1)",
        "tests/worker/test_leftovers.py",
    ),
    mutant(
        "the error of a job holds its variables until a garbage collection",
        "worker/run/attempt.py",
        "Attempt.outcome",
        "self.error = None",
        "",
        "tests/worker/test_leftovers.py",
    ),
    mutant(
        "programs that jobs start ignore SIGINT",
        "worker/child/process.py",
        "run_child",
        "signal.signal(signal.SIGINT, lambda *_: None)",
        "signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "tests/process/test_surroundings.py",
    ),
]

WORKERS = [
    mutant(
        "a worker claims and parks the jobs that only other workers know",
        "worker/child/sifting.py",
        "UnknownTasks.sift",
        "if _is_new(lease) and not _can_run(lease)",
        "if _can_run(lease) and not _can_run(lease)",
        "tests/worker/test_locked_jobs.py",
    ),
    mutant(
        "a worker asks a queue again at once in which it knows no job",
        "worker/child/sifting.py",
        "UnknownTasks.leaves",
        "self._clock() < self._look_at.get(queue, 0.0)",
        "self._clock() < 0.0",
        "tests/worker/test_locked_jobs.py",
    ),
    mutant(
        "a worker whose tasks.py cannot be imported starts",
        "worker/child/process.py",
        "run_child",
        "and not options.reload",
        "and options.reload",
        "tests/process/test_reload.py",
    ),
    mutant(
        "a relay whose tasks.py cannot be imported starts",
        "management/commands/relay_outbox.py",
        "Command.handle",
        "if failed := registry.failed_modules():",
        "if failed := list[str]():",
        "tests/outbox/test_relay_command.py",
    ),
]

PROBES = [
    mutant(
        "the probe has as many connections as others open",
        "worker/monitor/probe.py",
        "ProbeServer.__init__",
        "threading.Semaphore(CONNECTIONS_MAX)",
        "threading.Semaphore(1_000_000)",
        "tests/unit/test_probe_server.py",
    ),
    mutant(
        "a connection to the probe lasts for as long as it sends bytes",
        "worker/monitor/probe.py",
        "ProbeServer.service_actions",
        "self._cut_off()",
        "pass",
        "tests/unit/test_probe_server.py",
    ),
    mutant(
        "the probe listens on IPv4 alone",
        "worker/monitor/probe.py",
        "ProbeServer.server_bind",
        "socket.IPV6_V6ONLY, 0)",
        "socket.IPV6_V6ONLY, 1)",
        "tests/unit/test_probe_server.py",
    ),
]

AUDIT = [
    mutant(
        "what sub-commands change is not in the audit",
        "cli/audited.py",
        "audit",
        "if not changed:",
        "if changed:",
        "tests/cli/test_audited.py",
    ),
    mutant(
        "the records of an account go with the account",
        "admin/audit/recording.py",
        "keep_records",
        "bulk_create(events,",
        "bulk_create([],",
        "tests/admin/test_audit.py",
    ),
]

CONNECTIONS = [
    mutant(
        "a job that gets no connection is not counted",
        "worker/run/perform.py",
        "_count_refused",
        "if error is not None:",
        "if error is None:",
        "tests/worker/test_refused_jobs.py",
        database="mysql",
    ),
    mutant(
        "the result of a job is not read again on a new connection",
        "tasks/results.py",
        "load_result",
        'return retry_transient("result", partial(_load_once, job_id, alias, using), using=using)',
        "return _load_once(job_id, alias, using)",
        "tests/faults/test_killed_connections.py",
        database="mysql",
    ),
]

REDRIVES = [
    mutant(
        "the page of a new redrive puts all dead letters into groups",
        "dead_letters/listing.py",
        "preview",
        "else newest_rows(using, wanted, grouped)",
        "else (rows, False)",
        "tests/admin/test_new_redrive.py",
    ),
]

PID_FILES = [
    mutant(
        "a pid file is written through a symbolic link",
        "cli/process.py",
        "pid_file",
        "os.O_TRUNC | os.O_NOFOLLOW",
        "os.O_TRUNC",
        "tests/cli/test_options.py",
    ),
    mutant(
        "any process that has the number in a pid file is a worker",
        "cli/process.py",
        "pid_file",
        "and _may_be_worker(other)",
        "",
        "tests/cli/test_options.py",
    ),
]

ROWS = [
    mutant(
        "a renewal that meets no row says nothing",
        "maintenance/worker_rows.py",
        "renew",
        "return Renewal(seconds, frozenset(names) - there)",
        "return Renewal(seconds)",
        "tests/worker/test_workers.py",
    ),
]

MUTANTS = [*ROWS, *PROJECTS, *LEFT_BEHIND, *WORKERS, *PROBES, *AUDIT, *CONNECTIONS, *PID_FILES, *REDRIVES]
