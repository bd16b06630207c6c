"""How far it is: one line that is redrawn on a terminal, a line every tenth elsewhere."""

from django.core.management.base import OutputWrapper

WIDTH = 40


class Progress:
    """Show `done` of `total` things."""

    def __init__(self, total: int, things: str, out: OutputWrapper) -> None:
        self.total, self.things, self.out = total, things, out
        self.on_terminal = out.isatty()
        self.shown = -1

    def show(self, done: int) -> None:
        """Draw, if there is something new to see."""
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
        """A line of its own, above the bar, which is drawn again."""
        self.shown = -1 if self.on_terminal else self.shown
        self.out.write(f"\r{text:<{WIDTH + 16}}" if self.on_terminal else text)
        self.out.flush()

    def close(self) -> None:
        """End the bar's line."""
        if self.on_terminal:
            self.out.write("")
