"""What a shell can complete behind `jobs`, read from its parser."""

from __future__ import annotations

from argparse import Action, ArgumentParser, _SubParsersAction
from collections.abc import Iterable
from dataclasses import dataclass

#: metavars and names of options whose values are files
_FILES = {"FILE", "PYTHONPATH"}


@dataclass(frozen=True, slots=True)
class Argument:
    """An option with its flags, or without flags an argument that is known by its place."""

    flags: tuple[str, ...]
    help: str
    takes_value: bool
    name: str  # of its value, as the help shows it
    choices: tuple[str, ...]  # of its value; empty: anything
    is_file: bool
    repeats: bool


@dataclass(frozen=True, slots=True)
class Words:
    """A command or sub-command."""

    name: str
    help: str
    arguments: tuple[Argument, ...]
    subcommands: tuple[Words, ...] = ()

    @property
    def options(self) -> tuple[Argument, ...]:
        """Its arguments that have flags."""
        return tuple(argument for argument in self.arguments if argument.flags)


def words_of(parser: ArgumentParser, name: str = "jobs", meaning: str = "") -> Words:
    """The words of a parser and of its sub-commands."""
    subcommands: list[Words] = []
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            meanings = {choice.dest: choice.help or "" for choice in action._choices_actions}
            subcommands += [words_of(own, each, meanings.get(each, "")) for each, own in action.choices.items()]
    return Words(name, meaning, tuple(_arguments(parser._actions)), tuple(subcommands))


def _arguments(actions: Iterable[Action]) -> Iterable[Argument]:
    for action in actions:
        if isinstance(action, _SubParsersAction):
            continue
        name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        # The help of argparse writes a percent sign twice.
        text = (action.help or "").replace("%%", "%")
        yield Argument(
            flags=tuple(action.option_strings),
            help=text,
            takes_value=action.nargs != 0,
            name=name,
            choices=tuple(map(str, action.choices or ())),
            is_file=name in _FILES,
            repeats=action.nargs in ("*", "+") or type(action).__name__ == "_AppendAction",
        )
