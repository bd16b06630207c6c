"""python -m tests.docs.tutorial_picture: the picture of the tutorial, taken while its page is carried out.

Does what the page says on a project in an empty folder, and at each `test: picture` opens the address in
Chromium, as the user of the tutorial, and writes the file. Exit status 1 if there is no browser.
"""

import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.request import urlopen

from tests.docs.markdown import ROOT, pieces
from tests.docs.reader import PASSWORD, Reader
from tests.patience import wait_until

PAGE = ROOT / "docs" / "tutorial" / "first-job.md"
WIDTH, HEIGHT = 1280, 700


class Photographer(Reader):
    """A reader with a browser."""

    def __init__(self, folder, browser):
        super().__init__(folder)
        self.browser = browser

    def do(self, piece):
        if piece.verb == "picture":
            path, address = piece.text.split()
            (ROOT / path).write_bytes(self.take_picture("/" + address.split("/", 3)[3]))
            print(f"{path} written")
        else:
            super().do(piece)

    def take_picture(self, path):
        """The page as a PNG, of a site that is served meanwhile."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            base = f"127.0.0.1:{free.getsockname()[1]}"
        command, null = [sys.executable, "manage.py", "runserver", "--noreload", base], subprocess.DEVNULL
        with subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=null, stderr=null) as server:
            try:
                wait_for_site(f"http://{base}/admin/login/")
                return self.look_at(f"http://{base}", path)
            finally:
                server.terminate()

    def look_at(self, base, path):
        """Log in as a person does, and open the page."""
        self.browser.base = base
        self.browser.resize(WIDTH, HEIGHT)
        self.browser.prefer("light")
        self.browser.open(path)
        self.browser.find("#id_username").send_keys("ada")
        self.browser.find("#id_password").send_keys(PASSWORD)
        self.browser.follow("[type=submit]")
        self.browser.prefer("light")
        return self.browser.picture()


def wait_for_site(address):
    """Return when it answers."""
    wait_until(lambda: answers(address), what="an answer of the site")


def answers(address):
    """Whether somebody does at this address."""
    try:
        urlopen(address).close()
    except OSError:
        return False
    return True


def main():
    """Exit status 0 when the picture has been written."""
    from tests.browser.chromium import started
    from tests.servers import programs

    found = {name: programs.find_or_install(name) for name in ("chromium", "chromedriver")}
    if reasons := [reason for program, reason in found.values() if program is None]:
        print("\n".join(reasons), file=sys.stderr)
        return 1
    with (
        tempfile.TemporaryDirectory(prefix="jobqueue-tutorial-") as folder,
        started(found["chromium"][0], found["chromedriver"][0]) as browser,
    ):
        reader = Photographer(Path(folder), browser)
        try:
            for piece in pieces(PAGE):
                reader.take(piece)
        finally:
            reader.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
