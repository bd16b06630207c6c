"""The catalogue of places that are broken on purpose fits the code; make prove ISSUE=mutants breaks them."""

from pathlib import Path

import pytest

from tests.proofs.history.catalogue import MUTANTS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_the_place_is_in_the_code_once_and_its_tests_exist(mutant):
    code = (ROOT / mutant.file).read_text()
    assert code.count(mutant.old) == 1
    compile(code.replace(mutant.old, mutant.new), mutant.file, "exec")
    assert all((ROOT / path).exists() for path in mutant.tests)
