"""What must hold after a trial, judged by the log, by the rows of the producers and jobs, and by triggers."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from jobqueue.models import JobGroup
from tests.chaos.notes import LOCK_SECONDS, MEANT
from tests.proofs.audit import illegal

READY, PROCESSING, DONE, FAILED, CANCELED = range(5)
#: queues whose jobs need not have an effect
WITHOUT_EFFECT = {"locked", "coroutines", "probe", "groups"}
#: queues in which jobs may be CANCELED: by operators, at their expiry, with their workflow
CANCELING = {"plain", "each", "expiring", "groups"}
#: starts per second
RATES = {"rated": 20, "rated-queue": 15}
#: how much later than an instant of the database a process may note it
NOTE_SECONDS = 0.5


@dataclass
class Evidence:
    """All that was written during a trial."""

    lines: list
    jobs: dict = field(default_factory=dict)
    edges: list = field(default_factory=list)
    effects: list = field(default_factory=list)
    intents: list = field(default_factory=list)
    groups: list = field(default_factory=list)
    members: Counter = field(default_factory=Counter)
    counts: dict = field(default_factory=dict)
    #: (from, until) by the host's clock: spans in which processes or the server were stopped
    stops: list = field(default_factory=list)

    def of(self, event):
        """The lines of one event."""
        return [line for line in self.lines if line["event"] == event]

    def starts(self):
        """The starts of each job, in order."""
        found = defaultdict(list)
        for line in self.of("start"):
            found[line["job"]].append(line)
        return found

    def was_stopped(self, at):
        """Whether something may have been noted late, because a process had just been stopped."""
        return any(since - 1 < at < until + 2 for since, until in self.stops)


def shown(job):
    """A job in a line."""
    return (
        f"job {job.pk} ({job.queue}, status {job.status}, attempts {job.attempts}, {job.cause}, {job.last_error!r:.80})"
    )


def nothing_is_lost(e):
    """Each committed intent has its row and its job; one that was rolled back has neither."""
    there = {intent.number for intent in e.intents}
    for line in e.of("committed"):
        # Numbers of members are in no row of their producer.
        if not {"grouped", "flow"} & {*line["calls"]}:
            yield from (f"number {n} was committed and is not there: {line}" for n in line["numbers"] if n not in there)
    for intent in e.intents:
        if intent.job is not None and intent.job not in e.jobs:
            yield f"lost: {intent}"
    undone = {number for line in e.of("undone") for number in line["numbers"]}
    acted = {effect.number for effect in e.effects if effect.kind in ("plain", "keyed", "row", "member", "counted")}
    heard = {line["number"] for line in e.of("try")}
    for number in undone & (there | acted | heard):
        yield f"number {number} was rolled back, and is there or has had an effect"


def all_have_ended(e):
    """No job is left behind."""
    yield from (f"has not ended: {shown(job)}" for job in e.jobs.values() if job.status in (READY, PROCESSING))


def states_follow_the_machine(e):
    """Only legal changes, an unbroken chain, one end per life, fences that grow: by the triggers."""
    retried = {line["job"] for line in e.of("verb")} | {j for j, job in e.jobs.items() if job.queue == "doomed"}
    yield from illegal(e.edges, retried)
    last = {}
    for job, _, new, _ in e.edges:
        last[job] = new
    for job, state in last.items():
        if job in e.jobs and e.jobs[job].status != state:
            yield f"the last change of job {job} was to {state}: {shown(e.jobs[job])}"


def starts_have_claims(e):
    """Each start has a claim of its own, committed before it."""
    claims = {(job, fence) for job, old, new, fence in e.edges if (old, new) == (READY, PROCESSING)}
    for job, starts in e.starts().items():
        fences = [start["fence"] for start in starts]
        yield from (f"job {job} started without a claim: fence {f}" for f in fences if (job, f) not in claims)
        if len(set(fences)) != len(fences):
            yield f"job {job} started twice by one claim: fences {fences}"


def effects_happen_once(e):
    """An effect in finish() or once() is there exactly if the job is DONE, and once."""
    by_job = Counter(effect.job for effect in e.effects)
    for job, count in by_job.items():
        if count > 1:
            yield f"job {job} has had {count} effects"
        if job not in e.jobs:
            yield f"an effect of job {job}, which is not there"
        elif e.jobs[job].status != DONE:
            yield f"an effect, but not DONE: {shown(e.jobs[job])}"
    for job in e.jobs.values():
        if job.status == DONE and job.queue not in WITHOUT_EFFECT and not by_job[job.pk]:
            yield f"DONE without its effect: {shown(job)}"


def jobs_end_as_meant(e):
    """FAILED and CANCELED only where a task, an operator, an expiry or a workflow asks for it."""
    for job in e.jobs.values():
        meant = job.queue == "groups" and (MEANT in (job.last_error or "") or job.cause == "lost")
        if job.status == FAILED and not meant:
            yield f"FAILED: {shown(job)}"
        if job.status == CANCELED and job.queue not in CANCELING:
            yield f"CANCELED: {shown(job)}"


def keys_keep_their_order(e):
    """Jobs of an ordering key start in the order of the commits, each after the end of the one before."""
    firsts = {job: starts[0]["at"] for job, starts in e.starts().items()}
    ended = {effect.job: effect for effect in e.effects if effect.kind == "keyed"}
    for key, intents in _by_key(e, "keyed").items():
        for before, after in pairwise(intents):
            one, other = ended.get(before.job), firsts.get(after.job)
            if one is None or other is None:
                yield f"no effect or start: {before}, {after}"
            elif other < one.at or ended[after.job].pk < one.pk:
                yield f"key {key}: job {after.job} started before job {before.job} had ended"


def _by_key(e, kind):
    found = defaultdict(list)
    for intent in e.intents:
        if intent.kind == kind and intent.key:
            found[intent.key].append(intent)
    return {key: sorted(intents, key=lambda intent: intent.position) for key, intents in found.items()}


def rates_hold(e):
    """At most bucket + rate x t starts in any t seconds, by the database's clock."""
    for queue, rate in RATES.items():
        starts = {
            (s["locked_at"], job, s["fence"]) for job, found in e.starts().items() for s in found if s["queue"] == queue
        }
        times = sorted(at for at, _, _ in starts)
        for first in range(len(times)):
            for last in range(first + rate, min(len(times), first + 4 * rate)):
                count, seconds = last - first + 1, times[last] - times[first]
                if count > rate + rate * seconds + 1:
                    yield f"{queue}: {count} starts in {seconds:.3f} s"
                    break


def groups_end_once(e):
    """Each group has called back exactly once, after its last member, and counted its members right."""
    calls = Counter((effect.kind, effect.number) for effect in e.effects)
    there = {group.pk: group for group in e.groups}
    for intent in e.intents:
        if intent.kind != "group":
            continue
        if (group := there.pop(intent.number, None)) is None:
            yield f"group {intent.number} is lost"
            continue
        if group.state != JobGroup.State.ENDED:
            yield f"group {group.pk} has not ended"
            continue
        counted = (group.done, group.failed, group.canceled)
        if counted != tuple(e.members[group.pk, state] for state in (1, 2, 3)) or group.total != sum(counted):
            yield f"group {group.pk} counted {counted} of {group.total}"
        good = not group.failed and not group.canceled
        found = [calls[kind, group.pk] for kind in ("on_success", "on_failure", "on_done")]
        if found != [int(good), int(not good), 1]:
            yield f"group {group.pk} called back {found}; {counted} of {group.total}"
    yield from (f"group {pk} was never committed by its producer" for pk in there)


def dedupe_keys_are_unique(e):
    """All calls with one key gave the same job."""
    jobs = defaultdict(set)
    for intent in e.intents:
        if intent.kind == "dedupe":
            jobs[intent.key].add(intent.job)
    yield from (f"key {key} has the jobs {found}" for key, found in jobs.items() if len(found) > 1)


def unique_jobs_run_afterwards(e):
    """unique="waiting": a run begins after each enqueue."""
    starts = e.starts()
    for line in e.of("unique"):
        job = e.jobs.get(line["job"])
        if job is None or job.status != DONE or not any(start["at"] >= line["asked"] for start in starts[job.pk]):
            yield f"no run after the enqueue: {line}"


def outcomes_are_right(e):
    """An enqueue that succeeded is there, one that raised is not, an unknown one is there as a whole or not at all."""
    there = Counter()
    for job in e.jobs.values():
        if job.queue in ("rows", "alone"):
            payload = job.payload
            there[payload["number"] if "number" in payload else payload["args"][1]] += 1
    for line in e.of("alone"):
        found, whole = there[line["number"]], line["rows"]
        right = {"ok": (whole,), "unknown": (0, whole)}.get(line["outcome"], (0,))
        if found not in right:
            yield f"{found} rows: {line}"


def events_are_delivered(e):
    """Each committed event at least once, those of a key in order, and none that was rolled back."""
    tried, delivered = {}, {}
    for place, line in enumerate(e.lines):
        if line["event"] == "try":
            tried.setdefault(line["number"], place)
        elif line["event"] == "delivered":
            delivered.setdefault(line["number"], place)
    published = {intent.number for intent in e.intents if intent.kind == "event"}
    yield from (f"event {number} was not committed" for number in tried.keys() - published)
    yield from (f"event {number} was not delivered" for number in published - delivered.keys())
    for key, intents in _by_key(e, "event").items():
        for before, after in pairwise(intents):
            one, other = delivered.get(before.number), tried.get(after.number)
            if one is not None and other is not None and other < one:
                yield f"key {key}: event {after.number} was delivered before {before.number}"


def lease_locks_have_one_holder(e):
    """Within its time a lease lock has one holder, and its fences grow."""
    left = {(line["name"], line["lock_fence"]): line["at"] for line in e.of("left")}
    by_name = defaultdict(list)
    for line in e.of("got"):
        until = min(left.get((line["name"], line["lock_fence"]), float("inf")), line["asked"] + LOCK_SECONDS)
        by_name[line["name"]].append((line["lock_fence"], line["at"], until))
    for name, holders in by_name.items():
        holders.sort()
        for (fence, at, until), (next_fence, next_at, next_until) in pairwise(holders):
            if fence == next_fence:
                yield f"lock {name}: fence {fence} came twice"
            if max(at, next_at) < min(until, next_until):
                yield f"lock {name}: the holders of fences {fence} and {next_fence} overlap"


def a_mutex_loses_no_update(e):
    """As many updates as effects."""
    effects = sum(effect.kind == "counted" for effect in e.effects)
    if e.counts["counter"] != effects:
        yield f"the counter is {e.counts['counter']} after {effects} effects"


def a_pause_holds(e):
    """No job of a paused queue starts later than a second after the commit."""
    for line in e.of("start"):
        if line["queue"] != "plain" or e.was_stopped(line["at"]):
            continue
        for pause in e.of("pause"):
            if pause["since"] + 1 + NOTE_SECONDS < line["at"] < pause["until"]:
                yield f"started during {pause}: {line}"


def nothing_begins_after_its_expiry(e):
    """A job that has expired does not start."""
    for job, starts in e.starts().items():
        if job in e.jobs and (expires := e.jobs[job].expires_at):
            for start in starts:
                if start["locked_at"] > expires.timestamp():
                    yield f"claimed {start['locked_at'] - expires.timestamp():.3f} s after its expiry: {start}"


def ticks_fire_once(e):
    """One job for each tick."""
    times = Counter(effect.key for effect in e.effects if effect.kind == "tick")
    yield from (f"tick {key} had {count} jobs" for key, count in times.items() if count > 1)


CHECKS = (
    nothing_is_lost, all_have_ended, states_follow_the_machine, starts_have_claims, effects_happen_once,
    jobs_end_as_meant, keys_keep_their_order, rates_hold, groups_end_once, dedupe_keys_are_unique,
    unique_jobs_run_afterwards, outcomes_are_right, events_are_delivered, lease_locks_have_one_holder,
    a_mutex_loses_no_update, a_pause_holds, nothing_begins_after_its_expiry, ticks_fire_once,
)  # fmt: skip


def violations(evidence):
    """A line for each violation, with the name of its check; of each check the first ten."""
    for check in CHECKS:
        for number, found in enumerate(check(evidence)):
            if number < 10:
                yield f"{check.__name__}: {found}"
