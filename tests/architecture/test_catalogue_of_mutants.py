"""The catalogue of places that are broken on purpose fits the code; make prove ISSUE=mutants breaks them."""

from collections import Counter

import pytest

from tests.architecture.test_layers import ROOT, none_of
from tests.proofs.history.catalogue import DATABASES, MUTANTS, NotThere
from tests.proofs.history.catalogue.mutant import mutant

SERVERS = ("mysql", "mariadb", "postgres")
#: folders below jobqueue/ of a server's own code
OWN = ("db/mysql/", "db/mariadb/", "db/postgresql/")
#: the rooms that were written last
YOUNG = (
    *("gates", "flow", "failures", "runs", "schedules", "groups", "retention"),
    *("stats", "explain", "alarms", "masking"),
)


def test_each_mutant_breaks_one_place_in_the_code_and_names_tests_that_exist():
    def offenders():
        for one in MUTANTS:
            try:
                broken = one.broken((ROOT / one.file).read_text())
                compile(broken, one.file, "exec")
            except (NotThere, OSError, SyntaxError) as error:
                yield f"{one.what}: {error}"
            if one.database not in DATABASES:
                yield f"{one.what}: there is no database {one.database!r}"
            if not one.tests:
                yield f"{one.what}: no tests"
            yield from (f"{one.what}: there is no {path}" for path in one.tests if not (ROOT / path).exists())

    none_of(offenders())


def test_there_are_enough_mutants_of_each_room_and_of_each_server():
    files = [(one.file.removeprefix("jobqueue/"), one.database) for one in MUTANTS]
    of_server = Counter(database for file, database in files if file.startswith(OWN) and database in SERVERS)
    # The members of groups are in a room of their own.
    rooms = (file.split("/")[0].removesuffix(".py") for file, _ in files)
    of_room = Counter("groups" if name == "grouping" else name for name in rooms)

    def offenders():
        yield from [f"{len(MUTANTS)} mutants in all"] if len(MUTANTS) < 118 else []
        yield from [f"{of_server.total()} of servers"] if of_server.total() < 24 else []
        yield from (f"{of_server[name]} of {name}" for name in SERVERS if of_server[name] < 7)
        yield from (f"{of_room[name]} of {name}" for name in YOUNG if of_room[name] < 3)

    none_of(offenders())


CODE = """
LIMIT = 3

def other(rows):
    return rows.filter(a=1).first()

class Room:
    def look(self, rows):
        return rows.filter(
            a=1,
        ).first()
"""


def test_a_place_is_found_by_its_function_whatever_a_formatter_has_made_of_its_lines():
    place = mutant("", "", "Room.look", "return rows.filter(a=1).first()", "return rows.first()")
    assert place.broken(CODE) == CODE.replace("rows.filter(\n            a=1,\n        ).first()", "rows.first()")
    assert mutant("", "", "LIMIT", "3", "4").broken(CODE) == CODE.replace("3", "4")


@pytest.mark.parametrize(("function", "old"), [("Room.gone", "rows"), ("Room.look", "a=2"), ("Room.look", "rows")])
def test_a_place_that_is_not_there_or_there_twice_is_refused(function, old):
    with pytest.raises(NotThere):
        mutant("", "", function, old, "").broken(CODE)
