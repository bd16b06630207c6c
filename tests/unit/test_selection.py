"""Which queues the words on the command line mean."""

import pytest

from jobqueue.exceptions import InvalidValue
from jobqueue.transitions.claiming.candidates import Head
from jobqueue.worker.shared.queue_choice import parse
from tests.factories import make_job


@pytest.mark.parametrize(
    ("words", "weights", "every", "excluded"),
    [
        ([], {}, 1, set()),
        (["mail"], {"mail": 1}, None, set()),
        (["a,b:5,*"], {"a": 1, "b": 5}, 1, set()),
        (["a", "b"], {"a": 1, "b": 1}, None, set()),
        (["-mail"], {}, 1, {"mail"}),
        (["-mail,-web"], {}, 1, {"mail", "web"}),
        (["*:3", "a:9"], {"a": 9}, 3, set()),
        (["a , b"], {"a": 1, "b": 1}, None, set()),
        (["a,-b"], {"a": 1}, None, {"b"}),
        (["a:1000"], {"a": 1000}, None, set()),
    ],
)
def test_names_weights_star_and_exclusions_are_read(words, weights, every, excluded):
    found = parse(words)
    assert (found.weights, found.every, set(found.excluded)) == (weights, every, excluded)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "all queues"),
        (["mail"], "queue mail"),
        (["mail", "web:5"], "queues mail, web:5"),
        (["-slow"], "all queues but slow"),
        (["mail:5,*,-slow,-a"], "all queues (mail:5, *) but a, slow"),
    ],
)
def test_the_choice_can_be_said_in_a_sentence(words, said):
    assert parse(words).words == said


@pytest.mark.parametrize(
    "word",
    [
        "",
        ",",
        "a,",
        "a:",
        "a:0",
        "a:-1",
        "a:x",
        "a:1.5",
        "a:1001",
        ":5",
        "-",
        "a:5:6",
        "a*",
        "-*",
        "a\nb",
        "q" * 65,
        "a:\u0663",
        "-a:5",
    ],
)
def test_what_is_not_a_name_or_weight_is_refused(word):
    with pytest.raises(InvalidValue):
        parse([word])


@pytest.mark.parametrize(
    ("words", "served", "not_served"),
    [
        ([], ["any"], []),
        (["a"], ["a"], ["b"]),
        (["-a"], ["b"], ["a"]),
        (["a,*"], ["a", "b"], []),
        (["a,-a"], [], ["a"]),
    ],
)
def test_a_selection_tells_whether_it_serves_a_queue(words, served, not_served):
    selection = parse(words)
    assert all(selection.serves(queue) for queue in served)
    assert not any(selection.serves(queue) for queue in not_served)


def look(selection):
    """The queues in the order in which they are asked."""
    return [head.queue for head in selection.heads("default")]


def take_turns(selection, busy, rounds):
    """Which of the `busy` queues, the others of which have nothing that is due, bring jobs in so many rounds."""
    served = []
    for _ in range(rounds):
        for queue in look(selection):
            selection.asked(queue, brought=queue in busy)
            if queue in busy:
                served.append(queue)
                break
    return served


@pytest.mark.django_db
def test_heavier_queues_come_first_and_equal_ones_take_turns():
    for queue in ("low", "x", "y", "z"):
        make_job(queue)
    selection = parse(["low,x:5,y:5,z:5"])
    assert all(look(selection)[3] == "low" for _ in range(3))
    assert take_turns(selection, {"x", "y", "z", "low"}, 6) == ["x", "y", "z"] * 2


@pytest.mark.django_db
def test_queues_in_which_nothing_is_due_take_no_turn_from_others():
    for queue in ("a", "busy-1", "busy-2", "c"):
        make_job(queue)
    assert take_turns(parse(["a,busy-1,busy-2,c,idle"]), {"busy-1", "busy-2"}, 6) == ["busy-1", "busy-2"] * 3


@pytest.mark.django_db
def test_what_a_heavier_queue_has_left_over_is_shared_by_turns():
    for queue in ("heavy", "x", "y"):
        make_job(queue)
    selection, first = parse(["heavy:2,x,y"]), []
    for _ in range(4):
        heavy, light, _ = look(selection)
        selection.asked(heavy, brought=True)
        selection.asked(light, brought=True)
        first.append(light)
    assert first == ["x", "y", "x", "y"]


def test_an_excluded_queue_is_never_looked_at():
    assert parse(["a,b,-b"]).names("default") == ["a"]


def test_a_selection_prints_what_was_asked():
    assert str(parse(["a,b:5,*,-c"])) == "a, b:5, *, -c"


@pytest.mark.django_db
def test_a_worker_of_one_queue_need_not_look_where_an_announced_job_is(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert parse(["a"]).heads("default", guess=True) == [Head("a", None, all_due=False)]


@pytest.mark.django_db
def test_a_worker_of_several_queues_looks_at_all_of_them(django_assert_num_queries):
    with django_assert_num_queries(1):
        assert parse(["a,b"]).heads("default", guess=True) == []
