"""Options in YAML files: read, checked like those of the command line, and written so that a run can be repeated."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

import yaml

# A flag's name, or the name and the values that true and false in the file set; None: the line is ignored.
Target = Union[str, tuple[str, Mapping[Any, Any]]]
UNGROUPED = ("positional arguments", "options", "optional arguments")  # argparse's own groups


@dataclass(frozen=True)
class ConfigWords:
    """Other names of sections and options that a file may use.

    sections: word -> section. keys: "word", or "section.word" for a word of that section only.
    """

    sections: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, Target] = field(default_factory=dict)


NO_WORDS = ConfigWords()


def read_words(path: str | Path) -> ConfigWords:
    """Return the other names that a YAML file lists, see configs/other_names/options.yaml."""
    content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    keys = {word: next(iter(to.items())) if isinstance(to, dict) else to for word, to in content["keys"].items()}
    return ConfigWords(content["sections"], keys)


def read_config(
    parser: argparse.ArgumentParser,
    path: str,
    words: ConfigWords = NO_WORDS,
) -> dict[str, Any]:
    """Return the options of a YAML file, converted and checked like those of the command line.

    An option is at the top level (`epochs: 5`) or in any section (`training: {epochs: 5}`): their names are unique.
    Sections are the groups of --help, by their first word.
    Raises FileNotFoundError, or ValueError naming file, section, key and nearest known key.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"no configuration file at {path}; see configs/ for examples")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML in UTF-8: {error}; see configs/ for examples") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold `option: value` lines, got {content!r:.60}; see configs/ for examples")
    actions = {option.lstrip("-"): action for action in parser._actions for option in action.option_strings}
    for name in ("config", "help", "h"):
        actions.pop(name)
    values: dict[str, Any] = {}
    set_by: dict[str, str] = {}
    for section, key, value in _entries(parser, content, path, words):
        action, value = _meant(actions, words, section, key, value, path)
        if value is None and action is None:
            continue
        where = f"{section}.{key}" if section else str(key)
        if action.dest in set_by:
            raise ValueError(f"{path}: {set_by[action.dest]} and {where} both set {action.dest}; keep one of them")
        set_by[action.dest] = where
        values[action.dest] = _convert(action, value, f"{path}: {where}")
    return values


def config_text(parser: argparse.ArgumentParser, args: argparse.Namespace) -> str:
    """Return every option of `args` as YAML in sections; `--config` reads the same options back."""
    content: dict[str, Any] = {}
    for group in parser._action_groups:
        values = {
            action.dest: getattr(args, action.dest)
            for action in group._group_actions
            if action.dest not in ("config", "help") and getattr(args, action.dest, None) is not None
        }
        if group.title in UNGROUPED:
            content = {**values, **content}
        elif values:
            content[_section_name(group)] = values
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    return f"# Every option of this run. It is repeated with: --config and this file; the command line wins.\n{text}"


def changed_options(
    parser: argparse.ArgumentParser, args: argparse.Namespace
) -> tuple[list[tuple[str, Any, Any]], int]:
    """Return (name, value, default) of each option that is not at its default, and the number of the others."""
    changed = [
        (name, value, parser.get_default(name))
        for name, value in vars(args).items()
        if value != parser.get_default(name)
    ]
    return changed, len(vars(args)) - len(changed)


def _section_name(group: argparse._ArgumentGroup) -> str:
    return str(group.title).split()[0]


def _entries(
    parser: argparse.ArgumentParser, content: Mapping[Any, Any], path: str, words: ConfigWords
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (section, key, value) of every option in the file; the section is "" at the top level."""
    own = {_section_name(group) for group in parser._action_groups if group.title not in UNGROUPED}
    sections = own | {word for word, section in words.sections.items() if section in own}
    options = {option.lstrip("-") for action in parser._actions for option in action.option_strings}
    for key, value in content.items():
        if key in sections and (isinstance(value, dict) or (value is None and key not in options)):
            for inner, inner_value in (value or {}).items():
                yield key, inner, inner_value
        elif key in sections and key not in options:
            raise ValueError(f"{path}: {key} is a section and holds `option: value` lines, got {value!r:.60}")
        elif isinstance(value, dict) and key not in options:
            hint = _hint(key, sections, f"sections are {', '.join(sorted(own))}")
            raise ValueError(f"{path}: unknown section {key!r}; {hint}")
        else:
            yield "", key, value


def _meant(
    actions: Mapping[str, argparse.Action], words: ConfigWords, section: str, key: Any, value: Any, path: str
) -> tuple[Any, Any]:
    """Return the flag and the value that a line sets; (None, None) for a line that sets none."""
    known: dict[str, Target] = {name: name for name in actions}
    for word, target in words.keys.items():
        of_section, _, name = word.rpartition(".")
        flag = target if isinstance(target, str) else target[0]
        if flag in actions and of_section in ("", words.sections.get(section, section)):
            known.setdefault(name, target)
    if key not in known:
        hint = _hint(key, known, "see --help for the options")
        raise ValueError(f"{path}: unknown key {key!r}{f' in section {section}' if section else ''}; {hint}")
    target = known[key]
    if isinstance(target, str):
        return actions[target], value
    flag, meanings = target
    if isinstance(value, bool) and value in meanings:
        value = meanings[value]
        return (None, None) if value is None else (actions[flag], value)
    return actions[flag], value


def nearest(key: Any, known: Iterable[str]) -> str | None:
    """Return the known word that is most similar to `key`; None if none is similar."""
    near = difflib.get_close_matches(str(key), list(known), n=1)
    return near[0] if near else None


def _hint(key: Any, known: Iterable[str], otherwise: str) -> str:
    near = nearest(key, known)
    return f"did you mean {near}?" if near else otherwise


def _convert(action: argparse.Action, value: Any, where: str) -> Any:
    if action.nargs == 0:  # a switch
        if not isinstance(value, bool):
            raise ValueError(f"{where} is a switch, got {value!r}; use true or false")
        return value
    if value is None or isinstance(value, (list, dict)):
        raise ValueError(f"{where} needs one value, got {value!r}; write one, or remove the line")
    if value is False and "off" in (action.choices or ()):
        value = "off"  # YAML 1.1 reads an unquoted off as false
    choices = f"one of {', '.join(map(str, action.choices))}" if action.choices is not None else ""
    try:
        converted = action.type(str(value)) if callable(action.type) else str(value)
    except argparse.ArgumentTypeError as refusal:  # which says itself what is allowed
        said = f" must be {choices}, got {value!r}" if choices else f": {refusal}"
        raise ValueError(f"{where}{said}; correct the line") from None
    except ValueError:
        allowed = choices or ("a whole number" if action.type is int else "a number")
        raise ValueError(f"{where} must be {allowed}, got {value!r}; correct the line") from None
    if choices and converted not in action.choices:  # type: ignore[operator]
        raise ValueError(f"{where} must be {choices}, got {value!r}; correct the line")
    return converted
