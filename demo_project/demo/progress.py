"""Progress as a line that is redrawn on a terminal, or as a line per tenth in a file or a pipe."""

from django.core.management.base import OutputWrapper

WIDTH = 40


class Progress:
    """Show `done` of `total` things."""

    def __init__(self, total: int, things: str, out: OutputWrapper) -> None:
        self.total, self.things, self.out = total, things, out
        self.on_terminal = out.isatty()
        self.shown = -1

    def show(self, done: int) -> None:
        """Draw the bar if it has changed."""
        tenths = 10 * done // max(1, self.total)
        state = done if self.on_terminal else tenths
        if state == self.shown:
            return
        if self.on_terminal:
            bar = "#" * (WIDTH * done // max(1, self.total))
            self.out.write(f"\r[{bar:<{WIDTH}}] {done}/{self.total}", ending="")
        else:
            self.out.write(f"{10 * tenths:3d} %  {done} of {self.total} {self.things}")
        self.shown = state
        self.out.flush()

    def say(self, text: str) -> None:
        """Write a line above the bar, and draw the bar again."""
        self.shown = -1 if self.on_terminal else self.shown
        self.out.write(f"\r{text:<{WIDTH + 16}}" if self.on_terminal else text)
        self.out.flush()

    def close(self) -> None:
        """End the bar's line."""
        if self.on_terminal:
            self.out.write("")
