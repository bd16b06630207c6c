"""Live refresh: one at a time, and what changes while one is under way is not lost. The test answers for the server."""

import pytest

from tests.factories import make_jobs
from tests.patience import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
PAGE = "/admin/jobqueue/"
#: the requests of the page, each with a function that answers it
LISTEN = """
window.asked = [];
window.fetch = (address) => new Promise((resolve, reject) => window.asked.push({
    address: String(address), answer: text => resolve(new Response(text)), fail: () => reject(new Error("down")),
}));
window.timers = new Map();
window.setTimeout = (work, milliseconds) => {
    window.timers.set(++window.lastTimer, {work, milliseconds});
    return window.lastTimer;
};
window.lastTimer = 1e6;
window.clearTimeout = timer => window.timers.delete(timer);
"""
#: of a request that has not been read whole; all other timers are for the next request
LIMIT_MILLISECONDS = 30_000
ANSWER = """
window.asked[arguments[0]].answer('<div data-jobqueue-live="overview"><p id="fresh">' + arguments[1] + '</p></div>');
"""
LOOK = "document.dispatchEvent(new Event('visibilitychange'))"


@pytest.fixture
def page(site):
    make_jobs(3, "mail")
    site.open(PAGE)
    site.run(LISTEN)
    every(site, "60")
    return site


def every(page, seconds):
    page.run(
        "const one = document.querySelector('[data-jobqueue-refresh]'); one.value = arguments[0];"
        "one.dispatchEvent(new Event('change'))",
        seconds,
    )


def asked(page):
    return page.run("return window.asked.map(one => one.address)")


def fresh(page):
    return page.run("return document.querySelector('#fresh')?.textContent ?? ''")


def said(page):
    return page.run("return document.querySelector('[data-jobqueue-status]').textContent")


def timers(page):
    """The milliseconds of all timers that are set. None ends by itself: the test calls what they are for."""
    return page.run("return [...window.timers.values()].map(one => one.milliseconds)")


def end_timer(page, milliseconds):
    page.run(
        "for (const [timer, one] of [...window.timers]) {"
        "if (one.milliseconds === arguments[0]) { window.timers.delete(timer); one.work(); } }",
        milliseconds,
    )


def answered(page, number, text):
    """Answer a request, and wait until the page shows that."""
    page.run(ANSWER, number, text)
    wait_until(lambda: fresh(page) == text)


def test_who_comes_back_again_and_again_starts_one_refresh(page):
    for _ in range(3):
        page.run(LOOK)
    assert len(asked(page)) == 1
    answered(page, 0, "first")
    assert said(page).startswith("Updated")
    page.run(LOOK)
    assert len(asked(page)) == 2


def test_the_timer_starts_none_while_one_is_under_way(page):
    page.run(LOOK)
    every(page, "2")
    assert timers(page) == [LIMIT_MILLISECONDS]
    answered(page, 0, "late")
    wait_until(lambda: timers(page) == [2000])
    end_timer(page, 2000)
    assert len(asked(page)) == 2


def test_a_failure_does_not_stop_it(page):
    page.run(LOOK)
    page.run("window.asked[0].fail()")
    wait_until(lambda: said(page) == "No answer; trying again")
    # Later than usual, until another interval is chosen.
    assert timers(page) == [120_000]
    every(page, "2")
    assert timers(page) == [2000]
    end_timer(page, 2000)
    assert len(asked(page)) == 2
    answered(page, 1, "again")


def test_turned_off_while_one_is_under_way_it_shows_nothing_more(page):
    page.run(LOOK)
    every(page, "0")
    page.run(ANSWER, 0, "late")
    wait_until(lambda: timers(page) == [])
    assert (fresh(page), said(page)) == ("", "")
    page.run(LOOK)
    assert len(asked(page)) == 1


def test_an_answer_for_another_range_is_left_out_and_the_present_one_is_asked_for(page):
    page.run(LOOK)
    page.run("history.replaceState(null, '', '?range=1h')")
    page.run(ANSWER, 0, "15 minutes")
    wait_until(lambda: len(asked(page)) == 2)
    assert fresh(page) == ""
    assert asked(page)[1].endswith("?range=1h")
    answered(page, 1, "1 hour")
