"""Calls that wait for a job thread: those with a slot of a limit begin first, because others wait for their slots."""

import threading

from jobqueue.worker.run.pool import Call, CallQueue
from tests.patience import patient
from tests.unit.test_not_started import leased


def call(number, slot=None):
    return Call([leased(number)._replace(slot=slot)], [], 0.0)


def filled(*calls):
    waiting = CallQueue()
    for one in calls:
        waiting.add(one)
    return waiting


def numbers(leases):
    return [lease.job_id for lease in leases]


def test_those_with_a_slot_begin_first_and_each_kind_in_its_order():
    waiting = filled(call(1), call(2, slot=7), call(3), call(4, slot=8))
    assert numbers(waiting.next().leases[0] for _ in range(4)) == [2, 4, 1, 3]


def test_those_without_a_slot_are_taken_back_first_and_the_newest_of_each_kind():
    waiting = filled(call(1), call(2, slot=7), call(3), call(4, slot=8))
    assert numbers(waiting.take_back(keep=3)) == [3]
    assert numbers(waiting.take_back(keep=1)) == [1, 4]
    assert numbers(waiting.take_back()) == [2]
    assert (len(waiting), waiting.take_back()) == (0, [])


def test_threads_and_the_claimer_get_each_call_once():
    waiting, count, threads = CallQueue(), 2000, 4
    got: list[int] = []

    def take():
        while (number := waiting.next().leases[0].job_id) > 0:
            got.append(number)

    hands = [threading.Thread(target=take) for _ in range(threads)]
    for hand in hands:
        hand.start()
    for number in range(1, count + 1):
        waiting.add(call(number, slot=7 if number % 3 else None))
        if number % 5 == 0:
            got.extend(numbers(waiting.take_back(keep=3)))
    for _ in range(threads):
        waiting.add(call(0))
    for hand in hands:
        hand.join(patient())
    # Each thread may have looked for one with a slot before the last of these was added, and ended.
    got.extend(numbers(waiting.take_back()))
    assert sorted(got) == list(range(1, count + 1))
