"""Changing a loaded module in memory: a piece of a function's source, of a text, of a setting.

A patch names the module it changes and is applied as soon as that module is there, so that it can
be planted before Django is set up, in the test's own process and in every process it starts. One
whose text is no longer there raises `Void`: a refactoring cannot make it do nothing unnoticed.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, FunctionType, ModuleType
from typing import Any

Undo = Callable[[], None]
_SOURCE = "source with a weakness"


class Void(RuntimeError):
    """What a patch wants to change is not there (any more)."""


def _replaced(text: str, old: str, new: str, where: str) -> str:
    if text.count(old) != 1:
        raise Void(f"{where} holds the text {old!r} {text.count(old)} times, not once")
    return text.replace(old, new)


def _found(module: ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise Void(f"{module.__name__} has no {name}")
    return found


@dataclass(frozen=True)
class Source:
    """A piece of a function's source is another one; whoever holds the function has it changed."""

    module: str
    function: str
    old: str
    new: str

    def apply(self, module: ModuleType) -> Undo:
        """Change it, or raise `Void`; the result puts it back."""
        function = _found(module, self.function)
        if not isinstance(function, FunctionType):
            raise Void(f"{self.module}.{self.function} is no plain function")
        where = f"{self.module}.{self.function}"
        lines, first = inspect.getsourcelines(function)
        before = function.__code__, vars(function).get(_SOURCE)
        # A second patch of one function adds to the first.
        source = _replaced(before[1] or textwrap.dedent("".join(lines)), self.old, self.new, where)
        code = self._compiled(module, function, source, first)
        function.__code__ = code
        vars(function)[_SOURCE] = source

        def undo() -> None:
            function.__code__ = before[0]
            vars(function)[_SOURCE] = before[1]

        return undo

    def _compiled(
        self, module: ModuleType, function: FunctionType, source: str, first: int
    ) -> CodeType:
        where = f"{self.module}.{self.function}"
        tree = ast.increment_lineno(ast.parse(source), first - 1)
        code = compile(
            tree, inspect.getsourcefile(function) or where, "exec",
            flags=__future__.annotations.compiler_flag, dont_inherit=True,
        )  # fmt: skip
        space = dict(vars(module))
        exec(code, space)  # the product's own source, with one piece replaced
        changed: CodeType = space[function.__name__].__code__
        if changed.co_freevars != function.__code__.co_freevars:
            raise Void(f"{where} cannot be changed: it closes over other names now")
        return changed


@dataclass(frozen=True)
class Text:
    """A piece of a text of a module is another one. `name` may lead into dictionaries: `A/key`."""

    module: str
    name: str
    old: str
    new: str

    def apply(self, module: ModuleType) -> Undo:
        """Change it, or raise `Void`; the result puts it back."""
        first, *keys = self.name.split("/")
        holder: Any = vars(module)
        last: Any = first
        for key in keys:
            holder = holder.get(last)
            if not isinstance(holder, dict):
                raise Void(f"{self.module}.{self.name} leads nowhere")
            last = {"True": True, "False": False}.get(key, key)
        text = holder.get(last)
        if not isinstance(text, str):
            raise Void(f"{self.module}.{self.name} is no text")
        changed = _replaced(text, self.old, self.new, f"{self.module}.{self.name}")
        holder[last] = changed

        def undo() -> None:
            holder[last] = text

        return undo


Patch = Source | Text


def apply(patches: Sequence[Patch]) -> Undo:
    """Apply all, importing what they change; the result puts all back. Nothing of it stays when one
    raises.
    """
    undone: list[Undo] = []

    def undo() -> None:
        while undone:
            undone.pop()()

    try:
        for patch in patches:
            undone.append(patch.apply(importlib.import_module(patch.module)))
    except BaseException:
        undo()
        raise
    return undo


def plant(patches: Sequence[Patch]) -> None:
    """Apply each for good: at once where its module is loaded, and otherwise when it is."""
    waiting: dict[str, list[Patch]] = {}
    for patch in patches:
        module = sys.modules.get(patch.module)
        if module is not None:
            patch.apply(module)
        else:
            waiting.setdefault(patch.module, []).append(patch)
    if waiting:
        sys.meta_path.insert(0, _Finder(waiting))


class _Finder(MetaPathFinder):
    """Finds what is waited for as the other finders do, and changes it once it has run."""

    def __init__(self, waiting: dict[str, list[Patch]]) -> None:
        self._waiting = waiting

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname not in self._waiting:
            return None
        patches = self._waiting.pop(fullname)
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, patches)
                return spec
        return None


class _Loader(Loader):
    def __init__(self, real: Loader, patches: list[Patch]) -> None:
        self._real = real
        self._patches = patches

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        # Nothing but the change itself may differ: `inspect` and others ask for the real loader.
        module.__loader__ = self._real
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        for patch in self._patches:
            patch.apply(module)
