"""A headless Chromium of the distribution, driven by selenium."""

import json
import tempfile
from base64 import b64decode
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from django.conf import settings
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.support.expected_conditions import staleness_of
from selenium.webdriver.support.wait import WebDriverWait

AXE = Path(__file__).parent / "vendor" / "axe-core-4.14.1" / "axe.min.js"
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--no-first-run",
    "--no-default-browser-check",
    # A scroll bar takes room from narrow pages that it does not take on telephones.
    "--hide-scrollbars",
    "--force-prefers-reduced-motion",
    "--lang=en",
)
WIDE, LOAD_SECONDS = 1400, 120
#: (rule, selector) of what axe-core finds in the parts of pages that are Django's own, with the reason why it stays
OF_DJANGO = {
    ("link-in-text-block", ".breadcrumbs > a"): "all of it are links but the signs between them",
    ("label-title-only", "#searchbar"): "its label is the picture of a magnifying glass, which has a text",
}
#: Chromium asks for it by itself; the site has none
_ICON = "/favicon.ico"


class Browser:
    """One window. Addresses are paths below `base`."""

    def __init__(self, driver):
        self.driver, self.base = driver, ""

    def visit_site(self, base, client):
        """Be the person of a test client; the pages of `base` follow."""
        self.base = base
        self.leave()
        self._cdp("Network.clearBrowserCookies")
        self._set_cookie(settings.SESSION_COOKIE_NAME, client.cookies[settings.SESSION_COOKIE_NAME].value)
        self.speak("en")

    def leave(self):
        """End the page before its server: what it still loads would be refused, and told to the next test."""
        self.driver.get("about:blank")
        self.driver.get_log("browser")

    def speak(self, language):
        """The language of the pages that are opened from now on."""
        self._set_cookie(settings.LANGUAGE_COOKIE_NAME, language)

    def open(self, path):
        """Load a page, and wait until it and its scripts have been loaded."""
        self.driver.get(self.base + path)

    def resize(self, width, height=900, scale=1):
        """The size of the window in CSS pixels, each of which is `scale` pixels of a picture wide."""
        window = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self._cdp("Emulation.setDeviceMetricsOverride", **window)

    def prefer(self, theme):
        """What the reader's system prefers: light or dark. The admin follows it."""
        self._cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self._end_fades()

    def choose(self, theme):
        """What the reader has chosen in the admin: light, dark, or auto."""
        self.run("document.documentElement.dataset.theme = arguments[0]", theme)
        self._end_fades()

    def press(self, *keys):
        """Press keys, one after the other."""
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def run_scripts(self, yes):
        """Whether the pages' scripts run; those of the tests do anyway."""
        self._cdp("Emulation.setScriptExecutionDisabled", value=not yes)

    def run(self, script, *arguments):
        """Run a script of the test in the page; what it returns."""
        return self.driver.execute_script(script, *arguments)

    def find(self, selector):
        """The first element for a selector; an error if there is none."""
        return self.driver.find_element("css selector", selector)

    def find_all(self, selector):
        """The elements for a selector."""
        return self.driver.find_elements("css selector", selector)

    def follow(self, selector):
        """Click on a link or a button, and wait for the page that it leads to."""
        page = self.find("html")
        self.find(selector).click()
        WebDriverWait(self.driver, LOAD_SECONDS).until(staleness_of(page))

    def overflow(self):
        """By how many pixels the page is wider than the window, and which elements stand out."""
        return self.run(_OVERFLOW)

    def complaints(self):
        """What the pages have written to the console since the last call: refusals of the policy, errors of scripts."""
        found = [entry["message"] for entry in self.driver.get_log("browser")]
        return [message for message in found if _ICON not in message]

    def violations(self, rules=()):
        """What axe-core finds serious or critical in this page: rule, selector and reason. Without `rules` by all.

        What Django's own parts have is left out.
        """
        if not self.run("return typeof window.axe === 'object'"):
            self.run(_axe())
        options = {"resultTypes": ["violations"], "preload": False}
        if rules:
            options["runOnly"] = {"type": "rule", "values": list(rules)}
        return self.driver.execute_async_script(_CHECK, json.dumps(options), list(OF_DJANGO))

    def picture(self):
        """What is seen of the page, as a PNG."""
        taken = self._cdp("Page.captureScreenshot", format="png", optimizeForSpeed=True)
        return b64decode(taken["data"])

    def _end_fades(self):
        # Colours that fade are neither the old ones nor the new ones for a while.
        self.run("document.getAnimations().forEach(one => one.finish())")

    def _set_cookie(self, name, value):
        self._cdp("Network.setCookie", name=name, value=value, url=self.base)

    def _cdp(self, command, **arguments):
        return self.driver.execute_cdp_cmd(command, arguments)


@contextmanager
def started(chromium, chromedriver):
    """A new browser without a history, of these two programs."""
    with tempfile.TemporaryDirectory(prefix="jobqueue-chromium-", ignore_cleanup_errors=True) as folder:
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for argument in (*ARGUMENTS, f"--user-data-dir={folder}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
        driver.set_page_load_timeout(LOAD_SECONDS)
        driver.set_script_timeout(LOAD_SECONDS)
        try:
            yield Browser(driver)
        finally:
            driver.quit()


@cache
def _axe():
    return AXE.read_text()


_CHECK = """
const [options, ofDjango, done] = arguments;
const isDjangos = (rule, node) => ofDjango.some(([name, selector]) =>
    name === rule && document.querySelector(node.target.flat()[0]).matches(selector));
axe.run(document, JSON.parse(options)).then(
    found => done(found.violations
        .filter(one => ["serious", "critical"].includes(one.impact))
        .flatMap(one => one.nodes.filter(node => !isDjangos(one.id, node)).map(node => ({
            rule: one.id, selector: node.target.flat().join(" "), why: node.failureSummary,
            html: node.html.slice(0, 300),
        })))),
    error => done([{rule: "axe", selector: "", why: String(error), html: ""}])
);
"""
_OVERFLOW = """
const page = document.scrollingElement, width = window.innerWidth, out = [];
if (page.scrollWidth > width) {
    for (const one of document.body.querySelectorAll("*")) {
        if (one.getBoundingClientRect().right > width + 0.5) {
            const classes = [...one.classList].map(name => "." + name);
            out.push([one.tagName.toLowerCase(), one.id && "#" + one.id, ...classes].join(""));
        }
    }
}
return {pixels: Math.max(0, page.scrollWidth - width), elements: out.slice(0, 12)};
"""
