"""The reference as Markdown, made from the code: signatures, docstrings and commands, as they are when it is built.

``<!-- api: profl.simulate -->`` on a page becomes the entry of that name, ``<!-- commands -->`` every command. Names
are looked up in the imported package, so ``profl.profl`` is the method and not the module of that name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from typing import Any, get_type_hints

WIDE = 88  # columns of a signature that stays on one line
SECTIONS = {"Args:": "Arguments", "Attributes:": "Attributes", "Returns:": "Returns"}


def fill(text: str) -> str:
    """A page with its entries and commands filled in."""
    text = re.sub(r"<!-- api: ([\w.]+) -->", lambda found: entry(found[1]), text)
    return re.sub(r"<!-- commands -->", lambda _: commands(), text)


# -- names


def entry(name: str) -> str:
    """A heading, the signature, the docstring, and what is public of a class."""
    thing = find(name)
    parts = [f"### {name} {{: #{name} }}"]
    if callable(thing) and "Attributes:" not in (thing.__doc__ or ""):  # those are made by profl, and only read
        parts.append(f"```python\n{signature(name, thing)}\n```")
    if isinstance(thing, dict):
        parts.append(f"By name: {', '.join(f'`{key}`' for key in thing)}. Add your own to it.")
    else:
        parts.append(prose(documented(thing)))
    if inspect.isclass(thing):
        parts += [member(*found) for found in members(thing)]
    return "\n\n".join(part for part in parts if part)


def find(name: str) -> Any:
    """``profl.cases.pricing`` as Python finds it."""
    package, *path = name.split(".")
    thing = import_module(package)
    for i, part in enumerate(path):
        if not hasattr(thing, part):  # a module that the package does not import by itself
            import_module(".".join([package, *path[: i + 1]]))
        thing = getattr(thing, part)
    return thing


def documented(thing: Any) -> str:
    """The docstring that was written; not the one that ``dataclass`` or ``NamedTuple`` makes up."""
    text = inspect.cleandoc(thing.__doc__ or "")
    made_up = inspect.isclass(thing) and re.fullmatch(rf"{thing.__name__}\(.*\)", text, re.DOTALL)
    return "" if made_up else text


def members(thing: type) -> Iterator[tuple[str, Any, bool]]:
    """What a class itself defines under a public name and explains: its name, its function, whether it is called."""
    for key, value in vars(thing).items():
        called = not isinstance(value, property | cached_property)
        function = value.fget if isinstance(value, property) else getattr(value, "func", value)
        function = getattr(function, "__func__", function)
        own = inspect.isfunction(function) and function.__module__ == thing.__module__
        if not key.startswith("_") and own and function.__doc__:
            yield f"{thing.__name__}.{key}", function, called


def member(name: str, function: Any, called: bool) -> str:
    shown = signature(name, function, skip=1) if called else name
    shown = " ".join(shown.split()).replace("( ", "(").replace(", )", ")")
    return f"**`{shown}`**\n\n{prose(documented(function))}"


def signature(name: str, thing: Any, skip: int = 0) -> str:
    """A call with every parameter, its type and its default; on several lines where it is long."""
    try:
        found = inspect.signature(thing)
    except ValueError:  # an error that takes what any does
        return f"{name}(message)"
    listed, star = [], False
    for parameter in list(found.parameters.values())[skip:]:
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            listed.append("*")
        star = star or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        listed.append(one(parameter))
    gives = None if inspect.isclass(thing) else found.return_annotation
    ends = "" if gives in (None, found.empty) else f" -> {kind(gives)}"
    line = f"{name}({', '.join(listed)}){ends}"
    return line if len(line) <= WIDE else f"{name}(\n    " + ",\n    ".join(listed) + f",\n){ends}"


def one(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    typed = parameter.annotation is not parameter.empty
    text = f"{stars}{parameter.name}" + (f": {kind(parameter.annotation)}" if typed else "")
    if parameter.default is parameter.empty:
        return text
    return f"{text} = {default(parameter.default)}" if typed else f"{text}={default(parameter.default)}"


def kind(annotation: Any) -> str:
    annotation = getattr(annotation, "__forward_arg__", annotation)
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text)


def default(value: Any) -> str:
    """A default as it would be typed; a function by its name."""
    if isinstance(value, str):
        return f'"{value}"'
    named = callable(value) and hasattr(value, "__name__")
    return value.__name__ if named else re.sub(r" at 0x\w+|[<>]", "", repr(value))


# -- docstrings


def prose(text: str) -> str:
    """A docstring as Markdown: sections become lists, examples become code."""
    parts, lines = [], text.replace("``", "`").splitlines()
    while lines:
        if lines[0] in SECTIONS:
            title = SECTIONS[lines.pop(0)]
            parts.append(f"{title}:\n\n" + entries(take(lines, lambda line: not line or line.startswith(" "))))
        elif lines[0].lstrip().startswith(">>>"):
            parts.append("```pycon\n" + "\n".join(take(lines, bool)) + "\n```")
        elif not lines[0]:
            lines.pop(0)
        else:
            parts.append("\n".join(take(lines, lambda line: line and not line.startswith((">>>", *SECTIONS)))))
    return "\n\n".join(parts)


def take(lines: list[str], wanted: Any) -> list[str]:
    """The first lines, for as long as they are wanted; they are gone from ``lines``."""
    taken = []
    while lines and wanted(lines[0]):
        taken.append(lines.pop(0))
    return taken


def entries(lines: list[str]) -> str:
    """
    >>> print(entries(["  rate: how far", "    a step goes.", "  a, b: ends."]))
    - `rate`: how far a step goes.
    - `a`, `b`: ends.
    """
    joined = re.sub(r"\n {3,}", " ", "\n".join(line for line in lines if line))
    found = []
    for line in joined.splitlines():
        names, colon, text = line.strip().partition(":")
        known = colon and re.fullmatch(r"[\w*]+(, [\w*]+)*", names)
        quoted = ", ".join(f"`{name}`" for name in names.split(", "))
        found.append(f"- {quoted}:{text}" if known else f"- {line.strip()}")
    return "\n".join(found)


# -- commands


def commands() -> str:
    """Every command of ``profl`` with its arguments and options."""
    from typer.main import get_command

    from profl.cli import app

    return "\n\n".join(walk("profl", get_command(app)))


def walk(path: str, command: Any) -> Iterator[str]:
    yield described(path, command)
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(f"{path} {name}", inner)


def described(path: str, command: Any) -> str:
    group = bool(getattr(command, "commands", None))
    parameters = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    wanted = [shown(parameter) for parameter in parameters if parameter.param_type_name == "argument"]
    usage = " ".join([path, *wanted, "[OPTIONS]" if not group else "COMMAND"])
    parts = [f"## {path} {{: #{path.replace(' ', '-')} }}", f"```\n{usage}\n```", explained(command)]
    if parameters:
        rows = [f"| {names(each)} | {preset(each)} | {told(command, each)} |" for each in parameters]
        parts.append("\n".join(["| option | default | |", "|---|---|---|", *rows]))
    return "\n\n".join(part for part in parts if part)


def explained(command: Any) -> str:
    text = inspect.cleandoc(command.help or "")
    return re.sub(r"^Example: (.+)$", r"```\n\1\n```", text, flags=re.MULTILINE)


def shown(parameter: Any) -> str:
    name = parameter.name.upper() + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def names(parameter: Any) -> str:
    argument = parameter.param_type_name == "argument"
    known = [shown(parameter)] if argument else [*parameter.opts, *parameter.secondary_opts]
    return ", ".join(f"`{name}`" for name in known)


def preset(parameter: Any) -> str:
    if parameter.default is None or parameter.default is False or "UNSET" in repr(parameter.default):
        return "required" if parameter.required else ""
    return f"`{parameter.default}`"


def told(command: Any, parameter: Any) -> str:
    """The help of an option; of an argument as its function has it, since Click 8.5 forgets what Typer told it."""
    text = getattr(parameter, "help", None)
    if text is None and command.callback:
        hint = get_type_hints(command.callback, include_extras=True).get(parameter.name)
        text = next((found.help for found in getattr(hint, "__metadata__", ())), None)
    return (text or "").replace("|", "\\|")
