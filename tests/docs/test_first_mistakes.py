"""Every mistake of docs/howto/first-mistakes.md is made, and what is printed is compared with the page."""

import json
import re
import shutil

import pytest
from django.core.management import call_command

from tests.docs.markdown import ROOT, pieces
from tests.docs.reader import Output, Reader

PAGE = ROOT / "docs" / "howto" / "first-mistakes.md"
TUTORIAL = ROOT / "docs" / "tutorial" / "first-job.md"
NUMBERS = range(1, 21)
#: types what is in a file into one shell of Python, and prints what each part has printed
TYPE = """
import code, contextlib, io, json
console = code.InteractiveConsole({})
found = []
for text in json.load(open("typed.json")):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        console.runcode(compile(text, "<console>", "exec"))
    found.append(printed.getvalue())
json.dump(found, open("printed.json", "w"))
"""


class Newcomer(Reader):
    """Makes the mistakes in their order; each begins with the files as they were at first."""

    def __init__(self, folder):
        super().__init__(folder / "project")
        #: Python that is typed next, in one shell, and what the page says is printed then
        self.typed = []
        self.wrong = {}
        self.folder.mkdir()
        call_command("startproject", "shop", str(self.folder))
        (self.folder / "orders").mkdir()
        call_command("startapp", "orders", str(self.folder / "orders"))
        # The settings and the tasks of the tutorial.
        blocks = pieces(TUTORIAL)
        begun = [at for at, piece in enumerate(blocks) if piece.verb in ("append", "file")]
        for at in begun[:2]:
            self.take(blocks[at])
            self.take(blocks[at + 1])
        self.clean, self.may_fail = folder / "clean", True
        shutil.copytree(self.folder, self.clean)

    def begin(self, number):
        """Undo what the mistake before has changed in files. The database and an open Python shell stay."""
        self.number = number
        # A process of the fork server has our models, also where the app is not installed.
        self.first_job_seconds = 0 if number == 1 else 1
        if self.typed:
            return
        self.end()
        for name in ("shop", "orders"):
            shutil.rmtree(self.folder / name)
            shutil.copytree(self.clean / name, self.folder / name)

    def take(self, piece):
        if piece.kind == "python" and not self.next[0]:
            self.typed.append([piece.text, None, self.number])
        elif piece.kind == "text" and self.typed:
            self.typed[-1][1] = piece
        else:
            self.type()
            super().take(piece)

    def type(self):
        """Run the Python that was collected."""
        typed, self.typed = self.typed, []
        if typed:
            (self.folder / "typed.json").write_text(json.dumps([text for text, _, _ in typed]))
            self.fork(typed[0], ["shell", "-v0", "-c", TYPE])
            printed = json.loads((self.folder / "printed.json").read_text())
            for (_, expected, number), text in zip(typed, printed, strict=True):
                if expected:
                    self.printed = Output(lambda text=text: text)
                    self.expect(expected, number)

    def do(self, piece):
        if piece.verb == "unseen":
            self.fork(piece, piece.text.split()[2:])
        elif piece.verb == "without":
            with (self.folder / "shop" / "settings.py").open("a") as file:
                file.write(f"\nimport sys\n\nsys.modules[{piece.text!r}] = None\n")
        else:
            super().do(piece)

    def expect(self, piece, number=None):
        """Remember what is not printed, and go on."""
        try:
            super().expect(piece)
        except AssertionError as error:
            self.wrong.setdefault(number or self.number, []).append(str(error))


def parts():
    """The number of each mistake, and its pieces."""
    lines = PAGE.read_text().splitlines()
    heads = {at: int(found[1]) for at, line in enumerate(lines, 1) if (found := re.match(r"## (\d+)\. ", line))}
    for piece in pieces(PAGE):
        yield max(number for at, number in heads.items() if at < piece.line), piece


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    """What was printed otherwise than the page says, by the number of the mistake."""
    newcomer = Newcomer(tmp_path_factory.mktemp("mistakes"))
    try:
        for number, piece in parts():
            if number != newcomer.number:
                newcomer.begin(number)
            newcomer.take(piece)
        newcomer.type()
    finally:
        newcomer.end()
    return newcomer.wrong


def test_there_are_twenty_and_each_says_what_is_printed():
    assert sorted({number for number, piece in parts() if piece.kind == "text"}) == list(NUMBERS)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_mistake_prints_what_the_page_says(wrong, number):
    assert number not in wrong, "\n".join(wrong[number])
