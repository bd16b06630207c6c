"""The sub-command completion: the script that lets bash or zsh complete sub-commands and options of `jobs`.

The scripts are made from the parser, and contain all words: running Python at each key would take a second.
"""

from __future__ import annotations

import re
from argparse import Action, ArgumentParser, _SubParsersAction
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from shlex import quote
from typing import Any

from django.core.management import get_commands, load_command_class

from jobqueue.cli.output import Result, Subcommand

#: metavars and names of options whose values are files
_FILES = {"FILE", "PYTHONPATH"}
#: what may stand before "jobs", at the beginning of a line
_NAMES = "manage.py django-admin python python3"

_BASH = """\
# Completion of `manage.py jobs` for bash, made by: manage.py jobs completion bash
_jobqueue_jobs() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at=0 sub="" words="" i
  COMPREPLY=()
  for ((i = 0; i + 1 < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in
      manage.py|*/manage.py|django-admin|*/django-admin)
        [[ ${COMP_WORDS[i+1]} == jobs ]] && at=$((i + 1))
        break ;;
    esac
  done
  if ((at == 0)); then
    # Another command: whatever completed it before.
    i=_jobqueue_before_${1##*/}
    i=${i//[^a-zA-Z0-9]/_}
    [[ -n ${!i} ]] && "${!i}" "$@"
    return
  fi
  for ((i = at + 1; i < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in
      SUBCOMMANDS) sub=${COMP_WORDS[i]}; break ;;
    esac
  done
  # bash takes "--state=ready" for three words.
  if [[ $cur == "=" ]]; then
    cur=""
  elif [[ $prev == "=" ]]; then
    prev=${COMP_WORDS[COMP_CWORD-2]}
  fi
  case "$sub $prev" in
VALUES
    *)
      case $sub in
OPTIONS
      esac
      # File names are no words of this command.
      compopt +o default 2>/dev/null ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
for _jobqueue_name in NAMES; do
  _jobqueue_spec=$(complete -p "$_jobqueue_name" 2>/dev/null)
  if [[ $_jobqueue_spec == *" -F "* && $_jobqueue_spec != *" _jobqueue_jobs "* ]]; then
    _jobqueue_spec=${_jobqueue_spec##* -F }
    eval "_jobqueue_before_${_jobqueue_name//[^a-zA-Z0-9]/_}=${_jobqueue_spec%% *}"
  fi
  complete -o default -F _jobqueue_jobs "$_jobqueue_name"
done
unset _jobqueue_name _jobqueue_spec
"""

_ZSH = """\
# Completion of `manage.py jobs` for zsh, made by: manage.py jobs completion zsh
_jobqueue_jobs() {
  local at=0 sub="" i
  local -a found
  for ((i = 1; i + 1 < CURRENT; i++)); do
    case ${words[i]} in
      (manage.py|*/manage.py|django-admin|*/django-admin)
        [[ ${words[i+1]} == jobs ]] && at=$((i + 1))
        break ;;
    esac
  done
  if ((at == 0)); then
    # Another command: whatever completed it before.
    local before=${_jobqueue_before[${words[1]:t}]:-_default}
    $before "$@"
    return
  fi
  for ((i = at + 1; i < CURRENT; i++)); do
    case ${words[i]} in
      (SUBCOMMANDS) sub=${words[i]}; at=$i; break ;;
    esac
  done
  if [[ -z $sub && $PREFIX != -* ]]; then
    found=(
DESCRIBED
    )
    _describe -t commands sub-command found
    return
  fi
  words=("${(@)words[at,-1]}")
  CURRENT=$((CURRENT - at + 1))
  case $sub in
OPTIONS
  esac
}
typeset -gA _jobqueue_before
for _jobqueue_name in NAMES; do
  [[ ${_comps[$_jobqueue_name]-} == _jobqueue_jobs ]] || _jobqueue_before[$_jobqueue_name]=${_comps[$_jobqueue_name]-}
done
unset _jobqueue_name
compdef _jobqueue_jobs NAMES
"""


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


def bash(jobs: Words) -> str:
    """The script that bash reads."""
    places = [Words("", "", jobs.arguments, jobs.subcommands), *jobs.subcommands]
    values = [line for place in places for line in _bash_values(place)]
    return _filled(_BASH, jobs, VALUES="\n".join(values), OPTIONS="\n".join(map(_bash_words, places)))


def _bash_values(place: Words) -> Iterator[str]:
    """The values of the options that take one; options with the same values share a line."""
    alike: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for option in place.options:
        if option.takes_value:
            alike[" ".join(option.choices), option.is_file] += [f"{place.name} {flag}" for flag in option.flags]
    for (words, is_file), patterns in alike.items():
        files = "" if is_file else "; compopt +o default 2>/dev/null"
        yield f"    {'|'.join(map(quote, patterns))}) words={quote(words)}{files} ;;"


def _bash_words(place: Words) -> str:
    """The words of a place, and its options where an option begins, or where there are no words."""
    options = quote(" ".join(flag for option in place.options for flag in option.flags))
    words = [each.name for each in place.subcommands]
    words += [choice for argument in place.arguments if not argument.flags for choice in argument.choices]
    if words:
        return f"        {quote(place.name)}) words={quote(' '.join(words))}; [[ $cur == -* ]] && words={options} ;;"
    return f"        {quote(place.name)}) words={options} ;;"


def zsh(jobs: Words) -> str:
    """The script that zsh reads, behind compinit."""
    described = [f"      {quote(f'{each.name}:{_plain(each.help)}')}" for each in jobs.subcommands]
    places = [Words("''", "", jobs.options), *jobs.subcommands]
    options = [line for place in places for line in _zsh_arguments(place)]
    return _filled(_ZSH, jobs, DESCRIBED="\n".join(described), OPTIONS="\n".join(options))


def _zsh_arguments(place: Words) -> Iterator[str]:
    yield f"    ({place.name})"
    specs = [spec for argument in place.arguments for spec in _zsh_specs(argument)]
    yield " \\\n".join(["      _arguments -S", *(f"        {quote(spec)}" for spec in specs)]) + " ;;"


def _zsh_specs(argument: Argument) -> Iterable[str]:
    action = f"({' '.join(argument.choices)})" if argument.choices else "_files" if argument.is_file else " "
    value = f":{_plain(argument.name)}:{action}" if argument.takes_value else ""
    if not argument.flags:
        return [f"*{value}" if argument.repeats else value]
    others = "" if argument.repeats else f"({' '.join(argument.flags)})"
    repeats = "*" if argument.repeats else ""
    suffix = {False: "", True: "="} if argument.takes_value else {False: "", True: ""}
    shown = f"[{_plain(argument.help)}]"
    return [f"{others}{repeats}{flag}{suffix[flag.startswith('--')]}{shown}{value}" for flag in argument.flags]


def _plain(text: str) -> str:
    """`text` with the characters escaped that end a part of a specification."""
    return "".join(f"\\{char}" if char in "[]:\\" else char for char in text)


def _filled(script: str, jobs: Words, **parts: str) -> str:
    """`script` with its parts in the places that have their names."""
    parts |= {"SUBCOMMANDS": "|".join(each.name for each in jobs.subcommands), "NAMES": _NAMES}
    # In one pass: a help may have such a word.
    return re.sub(rf"\b({'|'.join(parts)})\b", lambda found: parts[found[0]], script).rstrip("\n")


SCRIPTS = {"bash": bash, "zsh": zsh}


def _declare(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(SCRIPTS), help="the shell that is to complete")


def _completion(using: str, given: dict[str, Any]) -> Result:
    # The parser of the command as it is in this project, with all sub-commands and Django's options.
    command = load_command_class(str(get_commands()["jobs"]), "jobs")
    script = SCRIPTS[given["shell"]](words_of(command.create_parser("manage.py", "jobs")))
    return Result({"shell": given["shell"], "script": script}, [script], is_script=True)


COMPLETION = Subcommand(
    "Print the script that lets bash or zsh complete sub-commands and options of jobs.",
    _declare,
    _completion,
    has_database=False,
)
