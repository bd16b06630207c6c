"""Pages are short, linked, and their links lead somewhere."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tests.architecture.test_layers import none_of
from tests.docs.markdown import EVIDENCE, OTHERS, PAGES, ROOT, anchors, links, name

LINES_MAX = 250
#: all sub-commands of `jobs`, each with its options: a reader searches in it
LONG = {"jobs.md": 600}
ADR_LINES_MAX = 60


def written_lines(page):
    """How many lines of a page somebody has written."""
    # Without what programs write: figures, what the tutorial prints, and the twenty mistakes themselves.
    written = re.sub(r"<!-- figure: .*?<!-- figure: end -->", "", page.read_text(), flags=re.DOTALL)
    if "tutorial" in page.parts or page.name == "first-mistakes.md":
        kind = r"\w+" if page.name == "first-mistakes.md" else "text"
        written = re.sub(rf"^(```{kind}\n.*?^```|<!-- test: .*?-->)$\n*", "", written, flags=re.DOTALL | re.MULTILINE)
    return written.count("\n")


def test_pages_are_short():
    def offenders():
        for page in PAGES + OTHERS:
            most = ADR_LINES_MAX if "adr" in page.parts else {page.name: LINES_MAX, **LONG}[page.name]
            if (lines := written_lines(page)) >= most:
                yield f"{name(page)} has {lines} lines, and {most} are too many"

    none_of(offenders())


def broken_links(page):
    """The links of a page that lead nowhere."""
    for target in links(page):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or not found.is_relative_to(ROOT):
            yield f"{name(page)} links to {target}, which does not exist"
        elif anchor and anchor not in anchors(found):
            yield f"{name(page)} links to {target}; there are {sorted(anchors(found))}"


def test_links_lead_somewhere():
    pages = [*PAGES, *OTHERS, *filter(Path.exists, EVIDENCE)]
    none_of(broken for page in pages for broken in broken_links(page))


def linked_from(page):
    return {(page.parent / target.partition("#")[0]).resolve() for target in links(page)}


def test_the_index_links_every_page_or_the_index_of_its_folder():
    index = ROOT / "docs" / "index.md"
    linked, indexes = set(), [index]
    while indexes:
        found = linked_from(indexes.pop()) - linked
        linked |= found
        indexes += [page for page in found if page.name == "index.md"]
    pages = set(PAGES) - {index, ROOT / "README.md"}
    assert pages <= linked, sorted(name(page) for page in pages - linked)


def test_pictures_can_be_read():
    for path in (ROOT / "docs" / "img").glob("*.svg"):
        root = ElementTree.parse(path).getroot()
        assert root.find("{http://www.w3.org/2000/svg}title") is not None, path
