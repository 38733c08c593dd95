"""Which test covers which fault, weakness and invariant: read from the suite, written into
docs/faults.md.

`python -m tests.coverage_table` says what is open; `--write` brings the last column of the tables
up to date. A test covers what its docstring names (`F34`, `F24-F26`, `I7`), or a comment in or
right above it, or the parameters in its decorators. A module's docstring, and the comments and
parameters outside its functions, speak for the file. Of modules that hold no tests, only functions
that check an invariant count (`i7_…`, or by their docstring). A weakness is covered by what fails
when it is planted, as `make weaknesses` proves, and by nothing that only speaks of it.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.model.weaknesses import PLANTED as PLANTED_IN_THE_MODEL
from tests.weaknesses import planted

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "faults.md"
SHOWN = 3
"""Names of tests shown in one cell; the rest is counted."""

_ID = re.compile(r"\b([FWI])([1-9]\d{0,2})\b(?:\s?[-–]\s?(?:\1)?([1-9]\d{0,2})\b)?")
_ROW = re.compile(r"^\| ([FWI][1-9]\d*) \| (.*) \|([^|]*)\|$")
_CHECK = re.compile(r"i([1-9]\d*)_")
_NOQA = re.compile(r"#\s*noqa.*$")
_ABOUT_IDS = frozenset({"coverage_table.py", "test_docs.py", "test_weaknesses.py"})
"""These speak about the ids, they cover none."""

Covered = Mapping[str, tuple[str, ...]]
"""Id of a fault, weakness or invariant -> the tests that name it, as pytest names them."""


def ids_in(text: str) -> Iterator[str]:
    """The ids a text names, ranges written out: "F24-F26" names three."""
    for kind, first, last in _ID.findall(_NOQA.sub("", text)):
        top = int(last) if last and int(first) < int(last) < int(first) + 40 else int(first)
        yield from (f"{kind}{number}" for number in range(int(first), top + 1))


def in_order(ids: Iterable[str]) -> list[str]:
    """Ids by kind and number."""
    return sorted(ids, key=lambda one: (one[0], int(one[1:])))


# --- reading the suite ---------------------------------------------------------------------------


def sources() -> list[Path]:
    """Every file that may hold tests or checks."""
    places = [ROOT / "tests", ROOT / "hub" / "testing"]
    places += sorted((ROOT / "integrations").glob("*/tests"))
    return [path for place in places for path in sorted(place.rglob("*.py"))]


def covered() -> Covered:
    """What the suite covers."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sources():
        if path.name in _ABOUT_IDS:
            continue
        for name, text in _claims(path):
            for one in ids_in(text):
                if one[0] != "W":
                    found[one].add(name)
    for weakness in planted.WEAKNESSES:
        found[weakness.id] |= {name.partition("[")[0] for name in weakness.caught_by}
    for one in PLANTED_IN_THE_MODEL:
        found[one].add("tests/model/test_model.py::test_a_planted_weakness_is_found")
    return {one: tuple(sorted(names)) for one, names in found.items()}


def _claims(path: Path) -> Iterator[tuple[str, str]]:
    """Pairs of a test's name and a text that speaks for it."""
    text = path.read_text()
    tree = ast.parse(text, str(path))
    name = path.relative_to(ROOT).as_posix()
    if path.name.startswith("test_") or name == "hub/testing/conformance.py":
        yield from _claims_of_tests(name, text, tree)
    else:
        yield from _claims_of_checks(name, tree)


def _claims_of_checks(name: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    for function, owner in _functions(tree, name):
        found = _CHECK.match(function.name)
        told = ids_in(ast.get_docstring(function) or "")
        mine = [f"I{found[1]}"] if found else [one for one in told if one[0] == "I"]
        yield owner, " ".join(mine)


def _claims_of_tests(name: str, text: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    yield name, ast.get_docstring(tree) or ""
    comments = _comments(text)
    spoken_for: set[int] = set()
    for node, owner in _functions(tree, name):
        first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        while first - 1 in comments:
            first -= 1
        lines = range(first, (node.end_lineno or node.lineno) + 1)
        spoken_for |= set(lines)
        if not node.name.startswith("test_"):
            continue
        yield owner, ast.get_docstring(node) or ""
        for line in lines:
            yield owner, comments.get(line, "")
        for decorator in node.decorator_list:
            yield from ((owner, value) for value in _strings(decorator))
    for outer in tree.body:
        if isinstance(outer, ast.ClassDef):
            yield f"{name}::{outer.name}", ast.get_docstring(outer) or ""
        elif isinstance(outer, ast.Assign | ast.AnnAssign) and outer.value is not None:
            yield from ((name, value) for value in _strings(outer.value) if _ID.match(value))
    for line, comment in comments.items():
        if line not in spoken_for:
            yield name, comment


def _functions(tree: ast.Module, name: str) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Functions of a module and of its classes, with their names as pytest gives them."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node, f"{name}::{node.name}"
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    yield inner, f"{name}::{node.name}::{inner.name}"


def _strings(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


def _comments(text: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {one.start[0]: one.string for one in tokens if one.type == tokenize.COMMENT}


# --- the page ------------------------------------------------------------------------------------


def table() -> dict[str, str]:
    """Id -> its last cell, as the page has it."""
    rows = map(_ROW.match, PAGE.read_text().splitlines())
    return {row[1]: row[3].strip() for row in rows if row}


def names_in(cell: str) -> list[str]:
    """The tests a cell claims."""
    return re.findall(r"`([^`]+)`", cell) if not cell.startswith("open") else []


def cell_for(names: tuple[str, ...], before: str) -> str:
    """What the last cell of a row should say."""
    if not names:
        return before if before.startswith("open: ") else "open: no test names it yet"
    kept = [name for name in names if "::" in name] or list(names)
    # What a row named before stays, so that a new test elsewhere does not rewrite half the page.
    shown = [name for name in names_in(before) if name in kept][:SHOWN]
    shown += [name for name in kept if name not in shown][: SHOWN - len(shown)]
    more = f" and {len(kept) - len(shown)} more" if len(kept) > len(shown) else ""
    return ", ".join(f"`{name}`" for name in shown) + more


def written(found: Covered) -> str:
    """The page with its last columns brought up to date."""
    lines = []
    for line in PAGE.read_text().splitlines():
        row = _ROW.match(line)
        if row:
            cell = cell_for(found.get(row[1], ()), row[3].strip())
            line = f"| {row[1]} | {row[2]} | {cell} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def problems(cells: Mapping[str, str], found: Covered) -> list[str]:
    """What the page claims against what the suite says, a sentence each."""
    told = [f"{one} is named by {found[one][0]}, but docs/faults.md has no such row" for one in
            in_order(set(found) - set(cells))]  # fmt: skip
    for one, cell in cells.items():
        names = found.get(one, ())
        told += [f"{one} claims {name}, which does not name it" for name in names_in(cell) if
                 name not in names]  # fmt: skip
        if names and not names_in(cell):
            told.append(f"{one} is said to be open, but {names[0]} names it")
        if not names and not cell.startswith("open: "):
            told.append(f"{one} is named by no test: say so, with the reason")
    return told


def main(given: list[str]) -> int:
    """Write the page, or say what is open; 1 when the page is not true."""
    found = covered()
    if "--write" in given:
        PAGE.write_text(written(found))
    cells = table()
    for kind, what in (("F", "faults"), ("W", "weaknesses"), ("I", "invariants")):
        mine = [one for one in cells if one[0] == kind]
        left = [one for one in mine if cells[one].startswith("open")]
        sys.stdout.write(f"{what}: {len(mine) - len(left)} of {len(mine)} covered\n")
        for one in left:
            sys.stdout.write(f"  {one} {cells[one]}\n")
    told = problems(cells, found)
    for line in told:
        sys.stdout.write(f"{line}\n")
    if told:
        sys.stdout.write("Bring it up to date: python -m tests.coverage_table --write\n")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
