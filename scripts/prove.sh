#!/bin/sh
# make prove [ISSUE=name] [DB=mysql|mariadb|postgres|sqlite]: every "Must show" at full size on the real servers, all of them
# or one; writes docs/proof/. Without ISSUE one after the other. The issues: core, operations (what operators see: recovery
# after a death, their queries beside ours, statistics, reasons, alarms, commands), dashboard (pages of the admin beside those of other packages; what they
# refuse, escape and mask; the way from the overview to a redrive, with pictures), locks, outbox, tasks, failures (causes,
# outcomes, redrives, the budget of retries), flow (limits, rates, breakers, pauses, full queues), schedules (also groups, workflows, bulk, and the deletion of
# ended jobs), demo (its races, whose figures its pages show), matrix (the tests that make test leaves out on a database because others are enough, and
# the verbs on the other Django), findings (the tests of each fixed bug on the commit before its fix) and mutants (the code
# broken on purpose); the last two take all databases. Outbox and the last seven go on where a run was broken off. Figures
# of speed: make bench.
sh "$(dirname "$0")/needs_git.sh" prove "writes the commit that it proves into its pages" || exit 1
. "$(dirname "$0")/venv.sh"

issue=${1:-}
db=${2:-}
if [ -z "$issue" ]; then
    for each in core operations dashboard locks outbox tasks failures flow schedules demo matrix findings mutants; do
        sh "$0" "$each" "$db"
    done
    exit 0
fi

# each_database KEPT TESTS: one database after the other, because rates are measured, and at the same time each would slow the
# others down. Writes .prove/KEPT-DATABASE for each that passed, and leaves those out the next time; sets $kept and $status.
each_database() {
    mysql_headers
    install -e '.[dev]'
    mkdir -p .prove docs/proof
    kept=.prove/$1
    status=0
    export JOBQUEUE_PROVE=1
    for each in ${db:-sqlite mysql mariadb postgres}; do
        ended=$kept-$each
        [ ! -e "$ended" ] || continue
        servers=redis
        [ "$each" = sqlite ] || servers=$each,redis
        rm -f "$ended.part"
        if JOBQUEUE_TEST_DB=$each JOBQUEUE_PROVE_OUT=$PWD/$ended.part "$PY" -m tests.servers run --only "$servers" -- \
            "$PY" -m pytest -q -p no:cacheprovider "$2" --timeout 1200; then
            mv "$ended.part" "$ended"
        else
            # What a test measured that passed is in the page all the same.
            status=1
        fi
    done
}

case $issue in
core)
    proofs="tests/proofs tests/faults --ignore=tests/proofs/locks --ignore=tests/proofs/outbox --ignore=tests/proofs/tasks"
    proofs="$proofs --ignore=tests/proofs/failures --ignore=tests/faults/test_redrive_walk.py --ignore=tests/proofs/demo"
    proofs="$proofs --ignore=tests/proofs/flow --ignore=tests/faults/test_flow_walk.py"
    proofs="$proofs --ignore=tests/proofs/schedules --ignore=tests/faults/test_retention_walk.py"
    proofs="$proofs --ignore=tests/faults/test_schedules_walk.py --ignore=tests/faults/test_groups_walk.py"
    proofs="$proofs --ignore=tests/faults/test_workflows_walk.py --ignore=tests/faults/test_bulk_verbs_walk.py"
    proofs="$proofs --ignore=tests/proofs/operations --ignore=tests/proofs/dashboard"
    ;;
locks) proofs="tests/proofs/locks" ;;
tasks) proofs="tests/proofs/tasks" ;;
failures | flow | schedules | operations | dashboard)
    mysql_headers
    install -e '.[dev]' "$lts"
    commit=$(git rev-parse --short=12 HEAD)
    kept=.prove/$issue-$commit
    mkdir -p .prove docs/proof
    # base: the last commit before there was any of it, as queues that use none of it must cost the same.
    case $issue in
    failures)
        base=9e1a050
        parts="causes outcomes retries redrive walk statements"
        walk=tests/faults/test_redrive_walk.py
        ;;
    flow)
        base=3981065
        parts="limits rates breaker pause walk statements"
        walk=tests/faults/test_flow_walk.py
        ;;
    dashboard)
        base=
        parts="pages rivals own safety clicks walk"
        walk=tests/faults/test_bulk_verbs_walk.py
        # The packages whose pages are measured beside ours.
        sh scripts/django6.sh
        sh scripts/other_packages.sh
        ;;
    operations)
        base=
        parts="recovery monitoring statistics reasons alarms commands"
        walk=
        ;;
    schedules)
        base=
        parts="cron unique importing firing server_clock groups dag bulk pruning partitions walk"
        walk="tests/faults/test_retention_walk.py tests/faults/test_schedules_walk.py"
        walk="$walk tests/faults/test_groups_walk.py tests/faults/test_workflows_walk.py"
        # The packages whose tables are imported.
        sh scripts/other_packages.sh
        ;;
    esac
    export JOBQUEUE_PROVE=1 JOBQUEUE_TEST_FULL=1
    status=0
    # One after the other: a rate is measured.
    for each in ${db:-sqlite mysql mariadb postgres}; do
        servers=redis
        [ "$each" = sqlite ] || servers=$each,redis
        # Each of the parts is kept when it has passed.
        for part in $parts; do
            ended=$kept-$each-$part
            [ ! -e "$ended" ] || continue
            # Empty where a part measures nothing on a database.
            : >"$ended.part"
            case $part in
            statements) work="-m tests.architecture.statements $base $each" ;;
            walk) work="-m pytest -q -p no:cacheprovider $walk --timeout 1200" ;;
            *) work="-m pytest -q -p no:cacheprovider tests/proofs/$issue/test_$part.py --timeout 1800" ;;
            esac
            if [ "$part" = statements ]; then
                "$PY" -m tests.servers run --only "$servers" -- "$PY" $work >"$ended.part" || { status=1; continue; }
            else
                JOBQUEUE_TEST_DB=$each JOBQUEUE_PROVE_OUT=$PWD/$ended.part \
                    "$PY" -m tests.servers run --only "$servers" -- "$PY" $work || { status=1; continue; }
            fi
            mv "$ended.part" "$ended"
        done
    done
    page="$issue.page"
    [ "$base" ] || page="parts_page $issue"
    # docs/proof/parts: those that were run one by one, maybe on other commits. The page says so.
    older=$(ls -d docs/proof/parts/"$issue"-* 2>/dev/null || true)
    # shellcheck disable=SC2086
    "$PY" -m tests.proofs.$page ${base:+"$base"} "$db" "$kept"-* $older >"docs/proof/$issue.md"
    echo "docs/proof/$issue.md written"
    exit "$status"
    ;;
outbox)
    each_database "outbox-$(git rev-parse --short=12 HEAD)" tests/proofs/outbox
    cat "$kept"-* >"$kept.all"
    "$PY" -m tests.proofs.report outbox "$kept.all" "$db" >docs/proof/outbox.md
    rm "$kept.all"
    echo "docs/proof/outbox.md written"
    exit "$status"
    ;;
demo)
    commit=$(git rev-parse --short=12 HEAD)
    each_database "demo${JOBQUEUE_PROVE_SMALL:+-small}-$commit" tests/proofs/demo
    "$PY" -m tests.proofs.demo.page "$commit" "$kept"-*
    echo "docs/proof/demo.md, demo_project/demo/races.json, and the races in docs/howto and docs/explanation written"
    exit "$status"
    ;;
matrix)
    mysql_headers
    install -e '.[dev]' "$lts"
    sh scripts/django6.sh
    export JOBQUEUE_TEST_FULL=1 JOBQUEUE_TEST_PYTHON6="$PWD/.venv-6/bin/python"
    commit=$(git rev-parse --short=12 HEAD)
    mkdir -p .prove
    for each in ${db:-sqlite mysql mariadb postgres}; do
        ended=.prove/matrix-$commit-$each
        [ ! -e "$ended" ] || continue
        servers=redis
        [ "$each" = sqlite ] || servers=$each,redis
        # Kept only if all tests have passed.
        "$PY" -m tests.servers run --only "$servers" -- "$PY" -m tests.suite --rest --db "$each" --lines "$ended.part"
        mv "$ended.part" "$ended"
    done
    # Of each database the newest run: with DB=name only that one is made anew. The page is as old as the oldest of them.
    oldest=$commit
    lines=$(mktemp)
    for each in sqlite mysql mariadb postgres; do
        newest=$(ls -t .prove/matrix-*-"$each" 2>/dev/null | head -n 1)
        [ -n "$newest" ] || continue
        of=${newest#.prove/matrix-}
        of=${of%-"$each"}
        sed "s/^/- /; s/$/, commit \`$of\`/" "$newest" >>"$lines"
        if [ "$(git rev-list --count "$of"..HEAD)" -gt "$(git rev-list --count "$oldest"..HEAD)" ]; then
            oldest=$of
        fi
    done
    {
        echo "# Proof: matrix"
        echo
        echo "Command: \`make prove ISSUE=matrix\`, commit \`$oldest\`. \`make test\` leaves tests out on a database where others are"
        echo "enough (\`tests/matrix.py\`); here they run on the others, and the tests of the verbs on the other Django."
        echo
        cat "$lines"
    } >docs/proof/matrix.md
    rm "$lines"
    echo "docs/proof/matrix.md written"
    exit 0
    ;;
findings | mutants)
    mysql_headers
    install -e '.[dev]'
    page=$(mktemp)
    status=0
    "$PY" -m tests.servers run -- "$PY" -m "tests.proofs.history.$issue" >"$page" || status=$?
    mv "$page" "docs/proof/$issue.md"
    echo "docs/proof/$issue.md written"
    exit "$status"
    ;;
*)
    echo "no proofs are known for ISSUE=$issue; known: core, operations, dashboard, locks, outbox, tasks, failures, flow, schedules, demo, matrix, findings, mutants" >&2
    exit 2
    ;;
esac
mysql_headers
install -e '.[dev]'
mkdir -p docs/proof
figures=$(mktemp)
clone=$(mktemp -d)
trap 'rm -rf "$figures" "$clone"' EXIT

# The two commands of the README, from nothing, twice: what is committed counts.
[ "$issue" != core ] || git clone --quiet . "$clone/jobqueue"
for run in $([ "$issue" != core ] || echo first second); do
    begun=$(date +%s)
    (cd "$clone/jobqueue" && env -u DATABASE_URL make --no-print-directory demo) >"$clone/demo.log" 2>&1 || { tail -n 30 "$clone/demo.log" >&2; exit 1; }
    printf '{"test": "make demo, %s run in a fresh clone", "says": "make demo on a machine with Python, git and make", "on": "sqlite", "seconds with set-up": %d, "proofs": "%s"}\n' \
        "$run" "$(($(date +%s) - begun))" "$(grep 'proofs hold' "$clone/demo.log")" >>"$figures"
done
export JOBQUEUE_PROVE=1 JOBQUEUE_PROVE_OUT="$figures"
if [ -n "$db" ]; then
    JOBQUEUE_TEST_DB=$db "$PY" -m tests.servers run -- "$PY" -m pytest -q -p no:cacheprovider $proofs --timeout 1200
else
    "$PY" -m tests.servers run -- "$PY" -m tests.suite $proofs --timeout 1200 --only-given
fi
"$PY" -m tests.proofs.report "$issue" "$figures" "$db" >"docs/proof/$issue.md"
echo "docs/proof/$issue.md written"
