"""No test has a time of its own: what is waited for is waited for with the patience of all, see tests/patience.py.

A busy machine makes everything late. A test that sleeps until something has happened, gives it so many seconds, or
compares how long it took with a limit fails there, or sees less.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.test_layers import ROOT, none_of, parsed

TESTS = ROOT / "tests"
#: a file, a folder, or a function in a file -> why it may
ALLOWED = {
    "patience.py": "the one way to wait",
    "blocking.py": "what the server lists is made anew only after 100 ms; SQLite and Redis tell nobody who waits",
    "app/": "bodies of jobs: they last, and look for a file by which the test lets them go on",
    "chaos/": "faults and load last for a time that the seed decides, and recovery has a promised limit",
    "proofs/": "measures at full size, with limits that are promised",
    "servers/": "starts servers for others, too; when one does not stop, it is killed",
    "failures/real/": "code whose own timeout is the failure",
    "failures/server.py": "does not answer: it waits until the client has given up",
    "explain/": "a database that answers slowly is what is explained",
    "locks/helpers.py": "what a lock guards lasts, so that somebody who may come in does",
    "locks/test_canceled_coroutines.py": "a time limit of the caller is what ends the block",
    "process/harness.py::_let_speak": "the test has failed, and what hangs is to say where",
    "process/harness.py::_frozen_cleanly": "what is not stopped comes to the end of its transaction",
    "process/test_adaptive.py::run": "a lock that is held nearly always: this is the rest",
    "process/test_busy_monitor.py": "its full size takes longer than the limit of all tests",
    "tasks/test_wait.py": "wait() of a result has a limit, and this is a test of it",
    "unit/test_holeproxy.py": "a connection hangs: that nothing comes is what can be seen",
    "unit/test_stack_dump.py": "the pace of a storm of signals",
    "worker/test_troubles.py": "a slow statement is what is measured",
}
#: calls that wait, and which of their arguments says how long
WAITS = {
    "wait": 0, "join": 0, "result": 0, "get": 1, "communicate": 1, "poll": 0, "settimeout": 0, "receive": 0,
    "wait_for": 1, "wait_until": 2,
}  # fmt: skip
#: that of the processor's time is none: others do not make it longer
CLOCKS = {"monotonic", "perf_counter", "time"}
OF_THE_PROCESSOR = {"time.thread_time", "time.process_time"}
MORE, LESS = (ast.Gt, ast.GtE), (ast.Lt, ast.LtE)


def name_of(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def constants(tree: ast.Module) -> set[str]:
    """Names that are numbers in the whole module."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and is_number(node.value, set()):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def is_number(node: ast.expr, known: set[str]) -> bool:
    """Whether it is a number above 0 that stands there: 0 is no wait."""
    if isinstance(node, ast.BinOp):
        return is_number(node.left, known) and is_number(node.right, known)
    if isinstance(node, ast.Name):
        return node.id in known
    if isinstance(node, ast.Call) and name_of(node) == "patient":
        return bool(node.args)
    value = getattr(node, "value", None)
    return (
        isinstance(node, ast.Constant) and isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    )


def limits(call: ast.Call) -> Iterator[ast.expr]:
    """What says how long a call waits."""
    yield from (word.value for word in call.keywords if word.arg == "timeout")
    place = WAITS.get(name_of(call))
    if place is not None and isinstance(call.func, ast.Attribute | ast.Name):
        yield from call.args[place : place + 1]
    if ast.unparse(call.func) == "pytest.mark.timeout":
        yield from call.args


def is_now(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and name_of(node) in CLOCKS and not node.args


def is_timed(node: ast.AST) -> bool:
    """Whether it is a call of timeit, by its own clock."""
    timers = [ast.unparse(word.value) for word in getattr(node, "keywords", ()) if word.arg == "timer"]
    timed = isinstance(node, ast.Call) and ast.unparse(node.func) in ("timeit.timeit", "timeit.repeat")
    return timed and not OF_THE_PROCESSOR & {*timers}


def has_passed(node: ast.expr) -> bool:
    """Whether it is what has passed until now."""
    parts = list(ast.walk(node))
    return any(map(is_timed, parts)) or (
        any(map(is_now, parts)) and any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub) for part in parts)
    )


def spans(tree: ast.Module) -> set[str]:
    """Names that stand for how long something took."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                both = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                pairs += zip(target.elts, node.value.elts, strict=False) if both else [(target, node.value)]
    return {target.id for target, value in pairs if isinstance(target, ast.Name) and has_passed(value)}


def took(node: ast.expr, known: set[str]) -> bool:
    """Whether it is the present instant, or a time that has passed until now."""
    return is_now(node) or has_passed(node) or any(getattr(part, "id", None) in known for part in ast.walk(node))


def has_a_limit(compare: ast.Compare, known: set[str]) -> bool:
    """Whether a time that has passed is to be less than something, or the present instant before another one."""
    sides = [compare.left, *compare.comparators]
    return any(
        (isinstance(op, LESS) and took(left, known) and not took(right, known))
        or (isinstance(op, MORE) and took(right, known) and not took(left, known))
        for left, op, right in zip(sides, compare.ops, sides[1:], strict=False)
    )


def paces(tree: ast.Module) -> set[ast.AST]:
    """Calls whose number is how often a loop looks, until the event that ends it."""
    return {
        node.test.operand
        for node in ast.walk(tree)
        if isinstance(node, ast.While) and isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
    }


def times_of_its_own(tree: ast.Module) -> Iterator[tuple[ast.expr, str]]:
    """The places in a module that have one, and what it is."""
    known, passed, paced = constants(tree), spans(tree), paces(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if name_of(node) == "sleep" and not (node.args and ast.unparse(node.args[0]) == "0"):
                yield node, "sleeps"
            elif node not in paced and any(is_number(limit, known) for limit in limits(node)):
                yield node, "waits for a number of seconds"
        elif isinstance(node, ast.Compare) and has_a_limit(node, passed):
            yield node, "has an upper bound for the time that has passed"


@cache
def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(parsed(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def places(path: Path, line: int) -> set[str]:
    """By which names ALLOWED may mean this line."""
    name = str(path.relative_to(TESTS))
    inside = {f"{name}::{one.name}" for one in functions(path) if one.lineno <= line <= (one.end_lineno or line)}
    return inside | {name, *(f"{folder}/" for folder in map(str, Path(name).parents))}


@cache
def found() -> list[tuple[str, set[str]]]:
    """Each place of all tests, and its names in ALLOWED."""
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno} {what}: {ast.unparse(node)[:80]}", places(path, node.lineno))
        for path in sorted(TESTS.rglob("*.py"))
        for node, what in times_of_its_own(parsed(path))
    ]


def test_no_test_has_a_time_of_its_own():
    none_of(offender for offender, names in found() if not names & ALLOWED.keys())


def test_nobody_is_allowed_what_nobody_does():
    used = set().union(*(names for _, names in found()))
    assert not ALLOWED.keys() - used


@pytest.mark.parametrize(
    "code",
    [
        "time.sleep(0.1)",
        "sleep(seconds)",
        "await asyncio.sleep(0.01)",
        "assert event.wait(5)",
        "event.wait(patient(5))",
        "LIMIT = 5\nthread.join(LIMIT)",
        "thread.join(timeout=5)",
        "process.communicate(timeout=2 * 30)",
        "subprocess.run(command, timeout=60)",
        "queue.get(True, 5)",
        "future.result(60)",
        "await asyncio.wait_for(work(), 5)",
        "wait_until(condition, 'it', 20)",
        "@pytest.mark.timeout(300)\ndef test(): pass",
        "assert time.monotonic() - begun < 2",
        "assert time.monotonic() - begun < patient(2)",
        "assert 2 >= time.perf_counter() - begun",
        "assert 0.9 < monotonic() - begun < 2",
        "took = time.monotonic() - begun\nassert took <= 2",
        "found, took = work(), time.time() - begun\nassert took <= 2",
        "while time.monotonic() < until: pass",
        "assert min(timeit.repeat(work)) < 0.01",
        "took = timeit.timeit(work, number=1)\nassert took < patient(1)",
    ],
)
def test_a_time_is_seen_however_it_is_spelled(code):
    assert list(times_of_its_own(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "await asyncio.sleep(0)",
        "assert event.wait(patient())",
        "event.wait(4 * patient())",
        "subprocess.run(command, timeout=patient())",
        "sqlite3.connect(name, timeout=0)",
        "','.join(words)",
        "found.get('name')",
        "event.wait()",
        "while not event.wait(0.05): enqueue()",
        "assert time.monotonic() - begun >= 2",
        "assert 2 < time.monotonic() - begun",
        "assert count <= 1 + (time.monotonic() - begun)",
        "count, took = len(found), time.monotonic() - begun\nassert count <= took",
        "assert before <= began <= time.monotonic()",
        "wait_until(lambda: time.monotonic() > later)",
        "assert timeit.timeit(work, timer=time.thread_time) < 8 * before",
    ],
)
def test_what_has_no_time_of_its_own_is_left_alone(code):
    assert not list(times_of_its_own(ast.parse(code)))
