"""From the overview to the traceback of the task that fails, and on to a redrive with a canary, with a real browser."""

from __future__ import annotations

import re
from itertools import product
from typing import NamedTuple

import pytest
from django.core.cache import cache
from django.urls import reverse

from jobqueue.models import Redrive
from tests.browser.palette import with_palette
from tests.browser.screenshots import PHONE, WIDE
from tests.launch import ROOT
from tests.proofs.dashboard import shop_rows
from tests.proofs.figures import FULL

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(1800)]
FOLDER = ROOT / "docs" / "img" / "clicks"
#: of all pictures together
BYTES_MAX = 2_000_000
#: language, theme and window of each run
LOOKS = list(product(("en", "ko"), ("light", "dark"), (WIDE, PHONE))) if FULL else [("en", "light", WIDE)]
#: to what comes next, unless it is seen
SCROLL = """
const one = document.querySelector(arguments[0]).getBoundingClientRect();
if (one.top < 0 || one.bottom > window.innerHeight) window.scrollBy(0, one.top - 60);
"""
MILLISECONDS = "return performance.getEntriesByType('navigation')[0].duration"


class Step(NamedTuple):
    """A page of the way. `click` is what leads to it, `shows` what must be there, `at` where the picture is taken."""

    name: str
    click: str | None
    shows: str
    at: str


STEPS = (
    Step("overview", None, "a[href$='#attempts']", ".jobqueue-card:has(a[href$='#attempts'])"),
    Step("traceback", "a[href$='#attempts']", "details.jobqueue-attempt[open] pre", "#attempts"),
    Step("redrive with a canary", "a[href*='/redrive/new/?fingerprint=']", "#preview input[name=start]", "#preview"),
    Step("redrive under way", "#preview input[name=start]", ".messagelist", ".messagelist"),
)


def walked(browser, look):
    """The milliseconds and the picture of each page, by the name of its step."""
    language, theme, window = look
    browser.resize(*window)
    browser.prefer(theme)
    browser.speak(language)
    cache.clear()
    found = {}
    for step in STEPS:
        if step.click is None:
            browser.open(reverse("admin:app_list", args=["jobqueue"]))
        else:
            browser.follow(step.click)
        assert browser.find(step.shows).is_displayed(), step
        milliseconds = browser.run(MILLISECONDS)
        browser.run(SCROLL, step.at)
        found[step.name] = milliseconds, browser.picture()
        if step.name == "traceback":
            assert "CardDeclined" in browser.find(step.shows).text
        elif step.click and "canary" in step.name:
            assert browser.find("#id_canary").get_attribute("value") == "10"
    return found


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: f"{look[0]}-{look[1]}-{look[2][0]}")
def test_the_way_from_the_overview_to_the_traceback_and_to_a_redrive(look, site, full, row):
    """From the overview to the traceback of the task that fails, and on to a redrive with a canary."""
    shop_rows.fill()
    found = walked(site, look)
    assert re.search(r"/redrive/\d+/change/$", site.driver.current_url)
    (redrive,) = Redrive.objects.all()
    assert (redrive.canary, redrive.matched) == (10, shop_rows.DEAD)
    names = list(found)
    to_traceback, to_redrive = names.index("traceback"), names.index("redrive under way")
    assert to_traceback <= 2
    assert to_redrive - to_traceback <= 2
    language, theme, window = look
    row(
        language=language,
        theme=theme,
        px_wide=window[0],
        clicks_to_the_traceback=to_traceback,
        clicks_from_there_to_the_redrive=to_redrive - to_traceback,
        **{f"ms of the {name}": round(milliseconds) for name, (milliseconds, _) in found.items()},
        **({"pictures": kept(look, found)} if full else {}),
    )


def kept(look, found):
    """Write the pictures; what each shows -> its path as seen from the page of figures."""
    language, theme, (width, _height) = look
    FOLDER.mkdir(parents=True, exist_ok=True)
    paths = {}
    for number, (name, (_milliseconds, png)) in enumerate(found.items(), 1):
        path = FOLDER / f"{language}-{theme}-{width}-{number}.png"
        path.write_bytes(with_palette(png))
        paths[f"{name}, {language}, {theme}, {width} px"] = f"../img/clicks/{path.name}"
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < BYTES_MAX
    return paths
