"""What is promised, what proves it, and how long that may take: the one table of all pages of evidence.

A page has parts. A part runs on each of its databases for itself, is kept in .prove/ when it has passed, and is named
and ended when it takes longer than its minutes. `python -m tests.proofs.run` runs them and writes the pages,
`python -m tests.proofs.index` writes the list of promises, and `python -m tests.proofs.freshness` tells what is stale.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.proofs.model import ALL, DATABASES, Page, Part, Promise

#: minutes on two cores that do nothing else: of a page, and of all pages together
PAGE_MINUTES, ALL_MINUTES = 30, 360

SHARED = ("jobqueue/conf", "jobqueue/transactions.py", "jobqueue/db", "jobqueue/models")
ENGINE = (*SHARED, "jobqueue/producer", "jobqueue/transitions", "jobqueue/ordering", "jobqueue/worker")


def _everywhere(minutes: int) -> dict[str, int]:
    return dict.fromkeys(DATABASES, minutes)


def _servers(minutes: int) -> dict[str, int]:
    return dict.fromkeys(DATABASES[1:], minutes)


def _walk(name: str, minutes: Mapping[str, int], *promises: Promise) -> Part:
    return Part("walk", minutes, tuple(f"tests/faults/test_{each}_walk.py" for each in name.split()), promises)


def _statements(base: str, was: str) -> Part:
    command = ("-m", "tests.architecture.statements", base, "{database}")
    text = f"Queues that use none of it send no more statements, and read no more rows, than before there {was}."
    promise = Promise(text, "Queues that use none of it", "statements now")
    tests = ("tests/architecture/statements.py", "tests/architecture/hops.py")
    return Part("statements", {"mysql": 1, "postgres": 1}, tests, (promise,), command)


CORE = Page(
    "core",
    "Kills, locks, clocks, timeouts, restarts of the server.",
    (*ENGINE, "jobqueue/wakeup", "jobqueue/maintenance"),
    (
        Part(
            "demo",
            {"sqlite": 2},
            ("tests/proofs/fresh_clone.py", "demo_project/demo", "scripts/demo.sh", "Makefile"),
            (
                Promise(
                    "After a clone, `make demo` shows kills and an outage from which all jobs come back.",
                    "make demo on a machine with Python, git and make",
                    "seconds with set-up",
                ),
            ),
            ("-m", "tests.proofs.fresh_clone"),
        ),
        Part(
            "kills",
            _everywhere(2),
            ("tests/proofs/test_kills.py",),
            (
                Promise(
                    "No job is lost and none ends twice while processes are killed.",
                    "4 worker processes, kill -9 every second",
                    "finished exactly once",
                ),
                Promise(
                    "A job that kills its process is started max_attempts times, and jobs beside it are not charged.",
                    "os._exit in a job",
                    "bystanders charged",
                ),
            ),
        ),
        Part(
            "timing",
            _everywhere(2),
            ("tests/proofs/test_clocks.py", "tests/proofs/test_timeouts.py", "tests/proofs/test_probes.py"),
            (
                Promise(
                    "Leases and due times do not depend on the host's clock or the server's time zone.",
                    "Servers at +09:00 and -08:00",
                    "seconds of lease left while it ran (lease 60 s, renewed every 0.5 s)",
                ),
                Promise(
                    "A job beyond its hard timeout is ended, and its neighbours are not charged.",
                    "Hard timeout",
                    "attempts charged to its neighbour",
                ),
            ),
        ),
        Part(
            "claims",
            _servers(1),
            ("tests/proofs/test_locks.py",),
            (Promise("A claim of ten jobs locks ten rows of a big backlog.", "A claim of 10", "row locks"),),
        ),
        Part(
            "servers",
            _servers(2),
            ("tests/proofs/test_server_faults.py",),
            (
                Promise(
                    "Lost sessions lose no job and charge no attempt.",
                    "All sessions of the workers killed",
                    "attempts charged",
                ),
                Promise(
                    "Workers come back by themselves after a restart and a crash of the server.",
                    "Server restarted, then killed",
                    "jobs",
                ),
            ),
        ),
    ),
)
OPERATIONS = Page(
    "operations",
    "What operators see: recovery after a death, their queries, statistics, reasons, alarms, commands.",
    (
        *(*ENGINE, "jobqueue/locks", "jobqueue/lockstats", "jobqueue/idempotency", "jobqueue/outbox"),
        *("jobqueue/stats", "jobqueue/metrics.py", "jobqueue/alarms", "jobqueue/explain", "jobqueue/doctor"),
        *("jobqueue/cli", "jobqueue/maintenance", "jobqueue/management"),
    ),
    (
        Part(
            "recovery",
            _everywhere(2),
            ("tests/proofs/operations/test_recovery.py",),
            (
                Promise(
                    "A job whose process was killed starts again within 2 s.", "A child is killed (-9)", "longest s"
                ),
                Promise(
                    "A job whose host is lost starts again within its lease and 2 s.",
                    "Supervisor, monitor and children are killed",
                    "longest s",
                ),
            ),
        ),
        Part(
            "monitoring",
            {"mysql": 2},
            ("tests/proofs/operations/test_monitoring.py",),
            (
                Promise(
                    "Operators can look at the process list and at locks at any moment.",
                    "Looks at the process list",
                    "errors",
                ),
            ),
        ),
        Part(
            "statistics",
            {"mysql": 2, "postgres": 2},
            ("tests/proofs/operations/test_statistics.py",),
            (
                Promise(
                    "Statistics count what triggers of the database count.",
                    "Triggers count each change",
                    "runs that a socket saw end / in job_stat",
                ),
                Promise(
                    "A killed process loses at most what it counted since its last write.",
                    "SIGKILL to any process every two seconds",
                    "counted twice",
                ),
            ),
        ),
        Part(
            "reasons",
            {"mysql": 3},
            ("tests/proofs/operations/test_reasons.py",),
            (
                Promise(
                    "Each reason why a job does not run is found within a second, among many jobs.",
                    "Each code is provoked",
                    "job ms",
                ),
                Promise("A healthy job is given no other reason.", "1,000 jobs with which nothing", "false reasons"),
            ),
        ),
        Part(
            "alarms",
            {"mysql": 10},
            ("tests/proofs/operations/test_alarms.py",),
            (
                Promise(
                    "Each alarm arrives once per incident.",
                    "Two incidents of every alarm",
                    "mails and webhooks while figures wavered",
                ),
            ),
        ),
        Part(
            "commands",
            {"mysql": 3},
            ("tests/proofs/operations/test_commands.py",),
            (
                Promise(
                    "Every command of `jobs` ends within 2 s among millions of jobs.",
                    "2,000,000 jobs in 37 queues",
                    "seconds",
                ),
            ),
        ),
    ),
)
DASHBOARD = Page(
    "dashboard",
    "Pages of the admin beside those of other packages; what they refuse, escape and mask; the way to a redrive.",
    (
        *(*SHARED, "jobqueue/admin", "jobqueue/stats", "jobqueue/templates", "jobqueue/templatetags"),
        *("jobqueue/masking.py", "jobqueue/cli", "jobqueue/bulk_verbs.py", "jobqueue/runs", "jobqueue/static"),
    ),
    (
        Part(
            "pages",
            {"mysql": 6, "postgres": 6},
            ("tests/proofs/dashboard/test_pages.py",),
            (
                Promise(
                    "95 of 100 requests of a page of the admin take 0.2 s at most, among millions of jobs.",
                    "2,000,000 jobs, 400,000",
                    "ms",
                ),
            ),
        ),
        Part(
            "rivals",
            {"mysql": 6},
            ("tests/proofs/dashboard/test_rivals.py",),
            (
                Promise(
                    "The admin pages of other packages, measured in the same way.",
                    "Pages of admins among 2,000,000 jobs",
                    "time",
                ),
            ),
        ),
        Part(
            "own",
            {"mysql": 2},
            ("tests/proofs/dashboard/test_own.py",),
            (
                Promise(
                    "Our own pages, measured as those of other packages.",
                    "Pages of admins among 2,000,000 jobs",
                    "time",
                    "jobqueue",
                ),
            ),
        ),
        Part(
            "safety",
            {"sqlite": 3},
            ("tests/proofs/dashboard/test_safety.py",),
            (
                Promise("No page shows a secret.", "Secrets in every place", "secrets shown"),
                Promise(
                    "Nobody gets a page or carries out a form without the permission.",
                    "Pages and forms that a superuser is offered",
                    "shown without an account or a permission",
                ),
                Promise("Hostile values are text.", "Script tags, RTL signs", "pages that do something else"),
                Promise("No page has a serious finding of axe-core.", "All pages in a browser", "serious or critical"),
            ),
        ),
        Part(
            "clicks",
            {"sqlite": 3},
            ("tests/proofs/dashboard/test_clicks.py",),
            (
                Promise(
                    "Two clicks lead from the overview to a traceback.",
                    "From the overview to the traceback",
                    "clicks to the traceback",
                ),
            ),
        ),
        _walk(
            "bulk_verbs",
            {"sqlite": 2, "mysql": 2},
            Promise(
                "A bulk action that is cut anywhere changes and counts each job once.",
                "A bulk action cut before and after",
                "jobs left out / changed or counted twice",
            ),
        ),
    ),
    writes=("docs/img/clicks/*.png",),
)
LOCKS = Page(
    "locks",
    "16 processes on one key, frozen and killed holders.",
    (
        *(*SHARED, "jobqueue/locks", "jobqueue/lockstats", "jobqueue/idempotency", "jobqueue/allocate.py"),
        *("jobqueue/fencing.py", "jobqueue/counter.py", "jobqueue/inspect"),
    ),
    (
        Part(
            "kinds",
            {"sqlite": 2, "mysql": 6, "mariadb": 3, "postgres": 3},
            ("tests/proofs/locks/test_lock_kinds.py",),
            (
                Promise("A lock has one holder at a time.", "N processes on one key", "two at once"),
                Promise("A holder that overslept cannot write under its fence.", "SIGSTOP past the end", "its write"),
                Promise("The lock of a killed holder is free again.", "SIGKILL of the holder", "seconds until free"),
            ),
        ),
    ),
)
OUTBOX = Page(
    "outbox",
    "Killed relays and brokers, order per key, one effect per key.",
    (*ENGINE, "jobqueue/outbox", "jobqueue/idempotency"),
    (
        Part(
            "relays",
            _everywhere(3),
            ("tests/proofs/outbox/test_outbox.py",),
            (
                Promise(
                    "An event is delivered if and only if its transaction was committed, in order per key.",
                    "Relays under kill -9 and SIGSTOP",
                    "effects",
                ),
                Promise(
                    "A broker that is killed loses no event.",
                    "Relays under kill -9 to a RabbitMQ",
                    "came twice, before the inbox",
                ),
                Promise(
                    "Two requests with the same idempotency key have one effect.",
                    "Two processes, the same idempotency keys",
                    "effects by one / by the other",
                ),
            ),
        ),
        Part(
            "keys",
            _everywhere(3),
            ("tests/proofs/outbox/test_ordering_keys.py",),
            (
                Promise(
                    "Jobs of a key run one after another, in the order of the commits.",
                    "Workers under kill -9 and SIGSTOP",
                    "jobs on keys",
                ),
                Promise(
                    "Beside a hot key, the jobs of others run at 80 % of their rate or more.",
                    "One key with many waiting jobs",
                    "ratio",
                ),
            ),
        ),
        Part(
            "walk",
            {"sqlite": 3, "mysql": 3},
            ("tests/proofs/outbox/test_ordering_walk.py",),
            (
                Promise(
                    "A process that dies at any statement leaves a key that goes on in order.",
                    "A process dies before and after every statement",
                    "moments",
                ),
            ),
        ),
    ),
)
TASKS = Page(
    "tasks",
    "`finish()` and batch handlers with kills and lost sessions at every statement.",
    (*ENGINE, "jobqueue/tasks", "jobqueue/context", "jobqueue/backends.py", "jobqueue/base"),
    (
        Part(
            "finishing",
            _everywhere(3),
            ("tests/proofs/tasks/test_finishing.py",),
            (
                Promise(
                    "What a job writes in finish() is committed once, wherever its process is killed.",
                    "SIGKILL before and after every statement, BEGIN",
                    "of them with the effect once",
                ),
                Promise(
                    "The same holds wherever its session is lost.",
                    "The server ends the session",
                    "of them with the effect once",
                ),
            ),
        ),
        Part(
            "batches",
            _everywhere(2),
            ("tests/proofs/tasks/test_batches.py",),
            (
                Promise(
                    "A poison row of a batch ends after max_attempts, and no effect is lost or doubled.",
                    "Calls of up to 50 rows",
                    "effects lost or doubled",
                ),
            ),
        ),
    ),
)
FAILURES = Page(
    "failures",
    "Causes, outcomes, redrives of dead letters, the budget of retries.",
    (
        *ENGINE,
        "jobqueue/failures",
        "jobqueue/dead_letters",
        "jobqueue/runs",
        "jobqueue/backoff.py",
        "jobqueue/requested.py",
        "jobqueue/tasks",
    ),
    (
        Part(
            "causes",
            _everywhere(1),
            ("tests/proofs/failures/test_causes.py", "tests/failures/real"),
            (
                Promise(
                    "Each of many real exceptions has a cause.",
                    "Real exceptions, each raised by a job",
                    "with the cause unknown",
                ),
            ),
        ),
        Part(
            "outcomes",
            _everywhere(1),
            ("tests/proofs/failures/test_outcomes.py",),
            (Promise("Each end of a run is told apart in every place.", "What a run leaves in the job's row", "end"),),
        ),
        Part(
            "retries",
            {"sqlite": 4, "mysql": 4},
            ("tests/proofs/failures/test_retries.py",),
            (
                Promise(
                    "While a service is down, retries are held at their share of the runs.",
                    "20 new jobs per second, back-off 1 s",
                    "share",
                ),
            ),
        ),
        Part(
            "redrive",
            {"mysql": 5, "postgres": 5},
            ("tests/proofs/failures/test_redrive.py",),
            (
                Promise(
                    "A redrive keeps its canary and its rate through kills, and each job is retried once.",
                    "A redrive of dead letters by real workers",
                    "rate held /s",
                ),
            ),
        ),
        _walk(
            "redrive",
            {"sqlite": 1, "mysql": 1},
            Promise(
                "A redrive that is cut anywhere loses no job and retries none twice.",
                "A redrive cut before and after",
                "jobs lost / retried twice",
            ),
        ),
        _statements("9e1a050", "were causes, outcomes and redrives"),
    ),
)
FLOW = Page(
    "flow",
    "Limits, rates, breakers and pauses under kills, frozen processes and frozen servers.",
    (*ENGINE, "jobqueue/gates", "jobqueue/flow", "jobqueue/maintenance", "jobqueue/tasks", "tests/observer.py"),
    (
        Part(
            "limits",
            {"sqlite": 3, "mysql": 6},
            ("tests/proofs/flow/test_limits.py",),
            (
                Promise(
                    "A concurrency limit holds while processes are killed.",
                    "8 processes, and kill -9 of any process",
                    "limit of the task / most leases / most bodies",
                ),
                Promise(
                    "It holds while the server stands still.",
                    "SIGSTOP of the database server",
                    "limit of the task / most leases / most bodies",
                ),
            ),
        ),
        Part(
            "rates",
            {"mysql": 3, "postgres": 3},
            ("tests/proofs/flow/test_rates.py",),
            (
                Promise(
                    "Starts never pass the rate.",
                    "A rate of 20/s",
                    "most starts above bucket + rate x t, seen from outside",
                ),
                Promise(
                    "What opens again starts within 0.3 s, even under a backlog.",
                    "From the end of a body to the start of the next one",
                    "p99 in ms",
                ),
            ),
        ),
        Part(
            "breaker",
            {"mysql": 4},
            ("tests/proofs/flow/test_breaker.py",),
            (
                Promise(
                    "An outage costs few attempts and few requests.",
                    "4 workers, 40 new jobs per second",
                    "requests per second while it was open",
                ),
            ),
        ),
        Part(
            "pause",
            {"mysql": 2, "postgres": 2},
            ("tests/proofs/flow/test_pause.py",),
            (
                Promise(
                    "A paused queue starts nothing later than a second after the commit.",
                    "8 processes and a backlog; pause()",
                    "last start after the commit, at most ms",
                ),
                Promise(
                    "A full queue refuses its producers.",
                    "8 producers add as fast as they can",
                    "most that were ready",
                ),
            ),
        ),
        _walk(
            "flow",
            {"sqlite": 2, "mysql": 3},
            Promise(
                "No slot is taken and no job hidden for ever, wherever a verb is cut.",
                "Slots, tokens, pauses and breakers",
                "slots taken / jobs hidden for ever",
            ),
        ),
        _statements("3981065", "was flow control"),
    ),
)
SCHEDULES = Page(
    "schedules",
    "One firing per tick, big groups, graphs with kills, pruning beside producers.",
    (
        *(*ENGINE, "jobqueue/schedules", "jobqueue/groups", "jobqueue/grouping", "jobqueue/retention"),
        *("jobqueue/maintenance", "jobqueue/cli/prune.py", "jobqueue/bulk.py"),
    ),
    (
        Part(
            "cron",
            {"sqlite": 1},
            ("tests/proofs/schedules/test_cron.py",),
            (
                Promise(
                    "The ticks around each change of the clocks are those of the wall clock.",
                    "The ticks of 13 expressions",
                    "ticks compared / different",
                ),
            ),
        ),
        Part(
            "unique",
            {"sqlite": 2, "mysql": 2},
            ("tests/proofs/schedules/test_unique.py",),
            (
                Promise(
                    "Fifty threads that enqueue the same key at once add one job.",
                    "50 threads enqueue at once",
                    "jobs added, least / most",
                ),
            ),
        ),
        Part(
            "importing",
            {"sqlite": 1},
            ("tests/proofs/schedules/test_importing.py",),
            (
                Promise(
                    "An imported table has the next ticks that its package calculates.",
                    "Tables and rows made by the packages",
                    "next ticks compared / different",
                ),
            ),
        ),
        Part(
            "firing",
            {"mysql": 6},
            ("tests/proofs/schedules/test_firing.py",),
            (
                Promise(
                    "Each tick fires once while workers are killed and the server restarts.",
                    "8 workers, a schedule each second",
                    "ticks expected / fired / doubled / missed",
                ),
                Promise(
                    "A tick fires within two seconds.",
                    "From the tick to the row of its job",
                    "seconds after the tick, median / longest",
                ),
            ),
        ),
        Part(
            "server_clock",
            {"mysql": 1},
            ("tests/proofs/schedules/test_server_clock.py",),
            (
                Promise(
                    "No tick is doubled when the clock of the server is set back.",
                    "2 workers, 3 schedules each 10 s",
                    "doubled after the clock was set back",
                ),
            ),
        ),
        Part(
            "groups",
            {"mysql": 5},
            ("tests/proofs/schedules/test_groups.py",),
            (
                Promise(
                    "A big group enqueues its callbacks once.",
                    "2 workers of 2 processes; members are added",
                    "on_success, on_failure, on_done enqueued",
                ),
                Promise(
                    "Members end at 70 % of the rate of other jobs, or more.", "Jobs without work, in a group", "share"
                ),
            ),
        ),
        Part(
            "dag",
            {"mysql": 3},
            ("tests/proofs/schedules/test_dag.py",),
            (
                Promise(
                    "Every node of a graph ends DONE once, after its parents.",
                    "2 workers of 2 processes, which are killed",
                    "nodes DONE twice, or before a parent",
                ),
            ),
        ),
        Part(
            "bulk",
            {"mysql": 1},
            ("tests/proofs/schedules/test_bulk.py",),
            (
                Promise(
                    "A bulk of tasks is added at 60 % of the rate of raw jobs, or more.",
                    "Bulk of tasks keeps most",
                    "share",
                ),
            ),
        ),
        Part(
            "pruning",
            {"mysql": 5},
            ("tests/proofs/schedules/test_pruning.py",),
            (
                Promise(
                    "A dry run names the jobs that are deleted.",
                    "Jobs of several queues, states and ages",
                    "named by one and not by the other",
                ),
                Promise(
                    "While old jobs are deleted, workers lose less than a fifth of their rate.",
                    "Millions of old jobs are deleted",
                    "not reached",
                ),
            ),
        ),
        Part(
            "partitions",
            {"mysql": 1},
            ("tests/proofs/schedules/test_partitions.py",),
            (
                Promise(
                    "A partition is dropped in a tenth of the time in which its rows are deleted.",
                    "Old jobs of job_archive",
                    "seconds",
                ),
            ),
        ),
        _walk(
            "retention schedules groups workflows",
            {"mysql": 2},
            Promise(
                "A pruner that is cut anywhere leaves no job half deleted.",
                "A pruner cut before and after",
                "jobs half deleted / deleted by mistake",
            ),
        ),
    ),
)
DEMO = Page(
    "demo",
    "The races for serial numbers and at the auction: each strategy, with what went wrong.",
    (
        *(*SHARED, "jobqueue/locks", "jobqueue/allocate.py", "jobqueue/fencing.py", "demo_project/serials"),
        "demo_project/auction",
    ),
    (
        Part(
            "races",
            _everywhere(6),
            ("tests/proofs/demo/test_races.py",),
            (
                Promise("`take` sells each serial number once.", "Serial numbers", "duplicates", "take"),
                Promise("A mutex keeps the rules of the auction.", "The auction", "crossed", "mutex"),
            ),
        ),
    ),
    writes=("demo_project/demo/races.json", "docs/img/serials-mysql.svg", "docs/img/auction-mysql.svg"),
    writer="tests.proofs.demo.shown",
)
FINDINGS = Page(
    "findings",
    "Each confirmed bug, with the commit that fixed it. Its tests ran on the code of that commit's parent, where they\n"
    "have to fail, and on the present code, where they have to pass. A test file that imports what came with the fix\n"
    "cannot be loaded with the parent's code; its tests are not counted.",
    ("jobqueue",),
    (
        Part(
            "before_and_now",
            {"sqlite": 6, "mysql": 8, "mariadb": 8, "postgres": 8},
            ("tests/proofs/history/findings.py", "tests/proofs/history/trees.py"),
            (
                Promise(
                    "The tests of each fixed bug fail without its fix, and pass now.",
                    "Fixed bugs",
                    "without their fix / with it",
                ),
            ),
            ("-m", "tests.proofs.history.findings", "{database}"),
        ),
    ),
)
MUTANTS = Page(
    "mutants",
    "The code, broken on purpose in one place at a time, and the test that noticed first. One of them alone:\n"
    "`python -m tests.proofs.history.mutants NUMBER`.",
    ("jobqueue",),
    (
        Part(
            "catalogue",
            {ALL: 15},
            ("tests/proofs/history/mutants.py", "tests/proofs/history/catalogue", "tests/proofs/history/trees.py"),
            (
                Promise(
                    "Each guard that is taken out of the code makes a test fail.",
                    "Guards that were taken out",
                    "noticed",
                ),
            ),
            ("-m", "tests.proofs.history.mutants"),
        ),
    ),
)
BENCHMARKS = Page(
    "benchmarks",
    "Compared with hand-written SQL and other queues.",
    (*ENGINE, "jobqueue/locks", "jobqueue/outbox", "jobqueue/tasks", "benchmarks"),
    (
        Part(
            "speed",
            {"sqlite": 3, "mysql": 5, "mariadb": 3, "postgres": 4},
            (),
            (
                Promise(
                    "The speed of hand-written SQL that is left after what a queue must do.",
                    "Drain",
                    "compared, same round",
                    "jobqueue",
                ),
                Promise("Single enqueues, each committed.", "Enqueue", "jobs/s", "task.enqueue()"),
                Promise("From the commit to the start of a job.", "Latency", "p50 ms", "jobqueue"),
            ),
            ("-m", "benchmarks", "--quick", "--add", "--db", "{database}", "--only", "drain,enqueue,latency"),
        ),
        Part(
            "size",
            {"mysql": 8, "postgres": 6},
            (),
            (Promise("A claim costs the same in a large table.", "Growth", "claim ms"),),
            (
                *("-m", "benchmarks", "--quick", "--add", "--db", "{database}", "--only"),
                "growth,snapshot,resources,idle,scaling,locks,outbox,keys",
            ),
        ),
    ),
    writes=("docs/img/bench-*.svg", "benchmarks/results/last.json"),
    writer="benchmarks",
    path="docs/benchmarks.md",
)
PAGES = {
    page.name: page
    for page in (
        *(CORE, OPERATIONS, DASHBOARD, LOCKS, OUTBOX, TASKS, FAILURES, FLOW, SCHEDULES, DEMO, FINDINGS, MUTANTS),
        BENCHMARKS,
    )
}
