"""The figures of the house are counted as they should be."""

from tests.architecture.house import by_cause

LOG = (
    "\0Merge two files\n\n3\t5\tjobqueue/a.py\n0\t4\tjobqueue/{b.py => rooms/b.py}\n"
    "\0Fix a page\n\n9\t9\tjobqueue/x.css\n"
    "\0Merge more\n1\t0\tjobqueue/a.py\n"
)


def test_lines_are_summed_by_the_first_word_of_the_title_and_only_those_of_python_files():
    assert by_cause(LOG) == {"Merge": (4, 5)}


def test_a_renamed_file_counts_with_what_changed_in_it():
    assert by_cause("\0Move a file\n\n2\t1\tjobqueue/{old => new}/a.py\n") == {"Move": (2, 1)}
