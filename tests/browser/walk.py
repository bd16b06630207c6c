"""One walk over all pages: each is loaded in English and in Korean, and looked at in all themes and widths."""

from dataclasses import dataclass, field

from tests.browser import rows
from tests.browser.chromium import WIDE
from tests.browser.pages import Pages
from tests.browser.site import logged_in, served

#: of a telephone and of the narrowest one; at 400 % zoom a window of 1280 pixels is as narrow
NARROW = (375, 320)
LANGUAGES = ("en", "ko")
#: the admin is dark because the reader's system is, or because the reader has chosen it
THEMES = ("light", "dark", "chosen dark")
#: the rules whose findings can differ between the themes
OF_COLOURS = ("color-contrast", "link-in-text-block")


@dataclass
class Visit:
    """What was seen of one page."""

    name: str
    path: str
    complaints: list = field(default_factory=list)  # of the browser
    violations: dict = field(default_factory=dict)  # theme -> what axe-core found
    overflows: dict = field(default_factory=dict)  # (language, width) -> pixels and elements


@dataclass
class Walk:
    """What was seen of all pages."""

    visits: list
    unknown: dict  # addresses that answered with neither a page nor a refusal
    rowless: set  # models without a row, whose pages nobody has seen


def walk(browser, only=None):
    """Fill the tables, serve the site, and look at every page of it as a superuser, or at those that `only` names."""
    rows.fill()
    client = logged_in()
    pages = Pages(client, rows.QUERIES)
    with served() as base:
        browser.visit_site(base, client)
        visits = [_visit(browser, name, path) for name, path in pages.paths.items() if only is None or name in only]
    return Walk(visits, pages.unknown, pages.rowless)


def _visit(browser, name, path):
    visit = Visit(name, path)
    browser.resize(WIDE)
    browser.prefer("light")
    browser.complaints()
    browser.open(path)
    # axe-core makes styles of its own, which the policy refuses: so these come first.
    visit.complaints = browser.complaints()
    visit.violations["light"] = browser.violations()
    browser.prefer("dark")
    visit.violations["dark"] = browser.violations(OF_COLOURS)
    browser.prefer("light")
    browser.choose("dark")
    visit.violations["chosen dark"] = browser.violations(OF_COLOURS)
    for language in LANGUAGES:
        browser.speak(language)
        if language != "en":
            browser.open(path)
        for width in NARROW:
            browser.resize(width)
            visit.overflows[language, width] = browser.overflow()
    browser.speak("en")
    return visit
