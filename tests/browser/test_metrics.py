"""The page of metrics in a browser: one zooms in and out with the mouse, and does without scripts."""

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.browser import rows

pytestmark = pytest.mark.django_db(transaction=True)
PAGE = "/admin/jobqueue/metrics/"
CHARTS = 4


def zoomed(browser):
    """The time that the page says it shows; empty if it shows all."""
    return browser.find("[data-jobqueue-zoomed]").text


def drag(browser, place=0):
    """From the middle of a chart to the right."""
    chart = browser.find_all(".u-over")[place]
    width = chart.size["width"]
    actions = ActionChains(browser.driver).move_to_element(chart).click_and_hold()
    actions.move_by_offset(width // 8, 0).move_by_offset(width // 8, 0).release().perform()


@pytest.fixture
def page(site):
    rows.fill()
    site.complaints()
    site.open(PAGE)
    return site


def test_dragging_zooms_all_charts_and_a_double_click_shows_all_again(page):
    assert len(page.find_all(".jobqueue-canvas canvas")) == CHARTS
    assert zoomed(page) == ""
    whole = [one.text for one in page.find_all(".jobqueue-readout")]
    drag(page)
    assert " \u2013 " in zoomed(page)
    # All charts tell of the instant under the cursor.
    told = [one.text for one in page.find_all(".jobqueue-readout")]
    assert len({text[:16] for text in told}) == 1
    assert told != whole
    ActionChains(page.driver).double_click(page.find_all(".u-over")[1]).perform()
    assert zoomed(page) == ""
    assert page.complaints() == []


def test_the_button_shows_all_again_by_the_keyboard(page):
    drag(page, 2)
    assert zoomed(page)
    page.run("document.querySelector('[data-jobqueue-reset]').focus()")
    page.press(Keys.ENTER)
    assert zoomed(page) == ""


def test_who_does_not_see_the_canvas_has_the_picture_and_its_table(page):
    drawn = page.run("""return [...document.querySelectorAll('.jobqueue-canvas')].map(
        one => one.getAttribute('aria-hidden') + one.parentElement.querySelectorAll('svg[role=img]').length)""")
    assert drawn == ["true1"] * CHARTS
    assert len(page.find_all(".jobqueue-chart-data")) == CHARTS


def test_the_colours_are_those_of_the_theme(page):
    def colours():
        return page.run("""return [...document.querySelectorAll('.jobqueue-canvas canvas')].map(
            one => [...one.getContext('2d').getImageData(0, 0, one.width, one.height).data].join()).join()""")

    light = colours()
    page.choose("dark")
    page.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert colours() != light


def test_a_zoomed_page_is_as_readable_and_as_narrow_as_before(page):
    drag(page)
    for theme in ("light", "dark"):
        page.prefer(theme)
        assert page.violations() == []
    for width in (375, 320, 1400):
        page.resize(width)
        page.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
        assert page.overflow()["pixels"] == 0, width


def test_without_scripts_the_charts_are_there_and_a_queue_is_chosen(site):
    rows.fill()
    site.run_scripts(False)
    site.open(PAGE)
    assert len(site.find_all("svg[role=img]")) == CHARTS
    assert site.find(".jobqueue-svg").size["height"] > 100
    assert not site.find("[data-jobqueue-zoom]").is_displayed()
    site.follow("a[href*='queue=']")
    assert site.find("#jobqueue-by-queue").get_attribute("value") == rows.QUEUE
    site.follow(".jobqueue-narrow a")
    assert site.find("#jobqueue-by-queue").get_attribute("value") == ""
