"""make docs: a site with search from the same pages, which loads nothing from another host."""

import os
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.docs.markdown import OTHERS, PAGES, ROOT, name
from tests.patience import patient

#: elements and attributes by which a browser loads something without being asked
LOADS = {"script": "src", "link": "href", "img": "src", "source": "srcset", "iframe": "src", "video": "src"}
SHOWN = [*PAGES, *OTHERS]


class Page(HTMLParser):
    """What one page loads and links to."""

    def __init__(self, path: Path):
        super().__init__()
        self.path, self.loads, self.links, self.navigation = path, [], [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        """Called by the parser."""
        given = dict(attributes)
        if (found := given.get(LOADS.get(tag, ""))) and given.get("rel") not in ("index", "search", "next", "prev"):
            self.loads.append(found)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
            if "reference internal" in given.get("class", ""):
                self.navigation.append(given["href"])

    def file(self, link):
        """The file that a relative link leads to."""
        return os.path.normpath(self.path.parent / link.partition("#")[0].partition("?")[0])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as make docs does."""
    folder = tmp_path_factory.mktemp("site")
    (options,) = re.findall(r"-m sphinx (.*) \.site$", (ROOT / "scripts" / "docs.sh").read_text(), re.MULTILINE)
    words = options.replace(".site/.doctrees", str(folder / ".doctrees")).split()
    command = [sys.executable, "-m", "sphinx", *words, str(folder / "html")]
    # Nothing of this machine's settings decides how the text is read.
    environment = {**os.environ, "PYTHONWARNINGS": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=patient())
    assert done.returncode == 0, done.stderr
    return folder / "html"


@cache
def read(path):
    return Page(path)


def html(site, page):
    return (site / page.relative_to(ROOT)).with_suffix(".html")


@pytest.fixture(scope="module")
def files(site):
    """All files of the site."""
    return {str(path) for path in site.rglob("*")}


def test_every_page_is_on_the_site_and_in_its_navigation(site):
    index = read(site / "docs" / "index.html")
    shown = {index.file(link) for link in index.navigation}
    assert [name(page) for page in SHOWN if str(html(site, page)) not in shown | {str(index.path)}] == []


def test_a_page_loads_nothing_from_another_host(site, files):
    for path in site.rglob("*.html"):
        for target in read(path).loads:
            assert not re.match(r"(\w+:)?//", target) or target.startswith("data:"), f"{path.name} loads {target}"
            assert target.startswith("data:") or read(path).file(target) in files, f"{path.name} loads {target}"
    for path in [*site.rglob("*.css"), *site.rglob("*.js")]:
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", path.read_text()), path


def test_links_inside_the_site_lead_somewhere(site, files):
    for path in site.rglob("*.html"):
        for link in read(path).links:
            if not re.match(r"\w+:|#", link):
                assert read(path).file(link) in files, f"{path.relative_to(site)} links to {link}"


def test_hidden_comments_are_not_in_it(site):
    for page in SHOWN:
        if re.search(r"^ *<!-- ", page.read_text(), re.MULTILINE):
            assert not re.search(r"&lt;!--|<!-- ?(test|bench|figure)", html(site, page).read_text()), name(page)


def test_the_search_knows_words_of_the_pages(site):
    words = (site / "searchindex.js").read_text()
    assert '"quarantin"' in words or "quarantin:" in words
    assert (site / "search.html").exists()


def test_the_first_page_leads_to_the_index(site):
    assert "docs/index.html" in (site / "index.html").read_text()
