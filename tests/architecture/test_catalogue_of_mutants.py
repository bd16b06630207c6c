"""The catalogue of places that are broken on purpose fits the code; make prove ISSUE=mutants breaks them."""

import pytest

from tests.architecture.test_layers import ROOT, none_of
from tests.proofs.history.catalogue import DATABASES, MUTANTS, NotThere
from tests.proofs.history.catalogue.mutant import mutant


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
