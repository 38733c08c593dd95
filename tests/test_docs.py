"""The docs are held against the code: what a page names exists, and what exists is named."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hub.contract import Capability, FailureKind
from hub.policy import REFUSED_STATUSES, Advice
from hub.states import MOVES, Actor, ErrorClass, Outcome, State
from tests import coverage_table, test_architecture

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *DOCS.rglob("*.md"),
        *ROOT.glob("integrations/*/README.md"),
        *ROOT.glob("integrations/*/simulator/README.md"),
    ]
)
CODE = ("hub", "integrations", "tests", "bench")


def page(name: str) -> str:
    """The text of one of our pages."""
    return (DOCS / name).read_text()


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def trees(*folders: str) -> tuple[tuple[Path, ast.Module], ...]:
    """Every Python file below the folders, parsed."""
    return tuple(
        (path, ast.parse(path.read_text(), str(path)))
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
    )


def texts_in(*folders: str) -> Iterator[str]:
    """Every string constant below the folders."""
    for _, tree in trees(*folders):
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def section(text: str, title: str) -> str:
    """What stands below a heading, down to the next one of its level."""
    level = re.search(rf"^(#+) {re.escape(title)}", text, re.M)
    assert level, f"there is no heading {title!r}"
    rest = text[level.end() :]
    end = re.search(rf"^#{{1,{len(level[1])}}} ", rest, re.M)
    return rest[: end.start()] if end else rest


def protocol(number: int) -> str:
    """One section of the protocol."""
    return section(page("protocol.md"), f"{number}.")


def codes(text: str) -> set[str]:
    """What stands in backticks, which may be broken over lines, outside of whole blocks."""
    inline = re.sub(r"^ *```.*?^ *```", "", text, flags=re.S | re.M)
    return {" ".join(code.split()) for code in re.findall(r"`([^`]+)`", inline)}


def rows_of(text: str) -> list[list[str]]:
    """The cells of the tables in a text."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


# --- the protocol --------------------------------------------------------------------------------


def test_every_section_is_there():
    numbers = re.findall(r"^## (\d+)\. ", page("protocol.md"), re.M)
    assert numbers == [str(number) for number in range(1, 19)]


def _places() -> set[str]:
    """Sections and their numbered paragraphs: 6, 6.4."""
    found = set()
    for number in range(1, 19):
        found.add(str(number))
        lines = re.findall(r"^(\d+)\. ", protocol(number), re.M)
        found |= {f"{number}.{line}" for line in lines}
    return found


def test_every_citation_of_the_protocol_resolves():
    places, lost = _places(), []
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path == Path(__file__):
                continue
            for place in re.findall(r"§\s?(\d+(?:\.\d+)?)", path.read_text()):
                if place not in places:
                    lost.append(f"{name_of(path)} cites §{place}")
    for path in PAGES:
        for place in re.findall(r"§\s?(\d+(?:\.\d+)?)", path.read_text()):
            if place not in places:
                lost.append(f"{name_of(path)} cites §{place}")
    assert not lost


def test_every_state_is_explained():
    table = {cells[0] for cells in rows_of(protocol(4))}
    assert {f"`{state.value}`" for state in State} <= table


def test_the_table_of_moves_is_that_of_the_code():
    by_row: dict[int, list[Any]] = {}
    for move in MOVES:
        by_row.setdefault(move.row, []).append(move)
    table = {int(c[0]): c for c in rows_of(protocol(5)) if c[0].isdigit()}
    assert sorted(table) == sorted(by_row)
    lost = []
    for row, moves in by_row.items():
        what, who = table[row][1], table[row][2]
        anything = "anything unfinished" in what
        for move in moves:
            if f"`{move.after.value}`" not in what and not anything:
                lost.append(f"row {row} does not say → {move.after}")
            if move.before and f"`{move.before.value}`" not in what and not anything:
                lost.append(f"row {row} does not say {move.before} →")
        wanted = {actor for move in moves for actor in move.actors}
        lost += [f"row {row} does not name {actor}" for actor in wanted if actor.value not in who]
        lost += [
            f"row {row} names {actor}, who may not"
            for actor in set(Actor) - wanted
            if re.search(rf"\b{actor.value}\b", who)
        ]
    assert not lost


def test_outcomes_and_error_classes_are_named():
    text = protocol(2)
    assert {f"**{outcome.value}**" for outcome in Outcome} <= set(
        re.findall(r"\*\*[A-Z]\*\*", text)
    )
    assert {error.value for error in ErrorClass} <= codes(text)
    walk = page("adding-an-integration.md")
    assert {f"ErrorClass.{error.name}" for error in ErrorClass} <= codes(walk)


def test_every_capability_is_named():
    names = {str(one.name) for one in Capability} | {"NOTHING"}
    for text in (protocol(8), page("adding-an-integration.md")):
        found = codes(text) | {name.removeprefix("Capability.") for name in codes(text)}
        assert names <= found


def test_failures_and_refused_statuses_are_those_of_the_code():
    text = protocol(10)
    assert {kind.value for kind in FailureKind} <= codes(text)
    refused = next(
        cells[0] for cells in rows_of(text) if cells[1].startswith("R") and "400" in cells[0]
    )
    assert {int(number) for number in refused.split(", ")} == REFUSED_STATUSES


def test_every_column_of_the_story_is_explained():
    from hub.models import Attempt, Evidence, Mapping, Operation

    named = codes(protocol(3))
    for model in (Operation, Attempt):
        own = {field.name for field in model._meta.get_fields() if not field.auto_created}
        assert own - named == set(), model.__name__
    assert "deleted_at" in named
    assert {Evidence, Mapping}  # named in words


def test_every_constraint_is_named():
    from django.apps import apps

    text = protocol(3)
    numbers = {
        found[1]
        for model in apps.get_app_config("hub").get_models()
        for constraint in model._meta.constraints
        if (found := re.match(r"c(\d+)_", constraint.name))
    }
    rows = {cells[0] for cells in rows_of(text)}
    assert {f"C{number}" for number in numbers} <= rows
    assert {f"C{number}" for number in range(1, 11)} <= rows


def test_every_decision_is_explained():
    from hub import review

    text = protocol(16)
    for action in review.ACTIONS:
        assert f"*{action.replace('_', ' ')}*" in text
    for advice in Advice:
        assert not advice or f"*{advice.replace('_', ' ')}*" in text
    assert {review.DECIDE, *review.PERMISSIONS.values()} <= codes(text)


def test_assumptions_are_those_people_are_shown():
    from hub.panel import words

    rows = {cells[0] for cells in rows_of(protocol(1))}
    assert set(words.ASSUMPTIONS) <= rows
    assert "A1–A5" in page("operating.md")


# --- faults --------------------------------------------------------------------------------------


def test_the_coverage_table_is_true():
    """Bring it up to date with `python -m tests.coverage_table --write`."""
    told = coverage_table.problems(coverage_table.table(), coverage_table.covered())
    assert not told, "\n".join([*told, "Run: python -m tests.coverage_table --write"])


def test_every_fault_weakness_and_invariant_has_its_row_once():
    rows = re.findall(r"^\| ([FWI]\d+) \|", page("faults.md"), re.M)
    wanted = [f"I{number}" for number in range(1, 22)]
    wanted += [f"F{number}" for number in range(1, 132)]
    wanted += [f"W{number}" for number in range(1, 34)]
    assert rows == wanted


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("a lost answer (F34)", ["F34"]),
        ("F24-F26 and F28", ["F24", "F25", "F26", "F28"]),
        ("F24–26", ["F24", "F25", "F26"]),
        ("I5, W3", ["I5", "W3"]),
        ("import x  # noqa: F401", []),
        ("UTF8, F100x and W005", []),
    ],
)
def test_ids_are_read_from_texts(text, ids):
    assert list(coverage_table.ids_in(text)) == ids


def test_every_step_point_is_named():
    first = "submit|claim|prepare|mark|send|recv|settle|follow_up|look|poll|sweep|decide"
    pattern = re.compile(rf"({first})\.[a-z_]+")
    passed = {text for text in texts_in("hub") if pattern.fullmatch(text)}
    named = {code for code in codes(page("faults.md")) if pattern.fullmatch(code)}
    assert passed == named


# --- architecture --------------------------------------------------------------------------------


def test_every_module_has_its_line_in_its_row():
    text = page("architecture.md")
    titles = {"rules": "Rules", "things": "Things", "verbs": "Verbs", "edges": "Edges"}
    lost = []
    for path in sorted((ROOT / "hub").iterdir()):
        module = path.name.removesuffix(".py")
        is_code = path.suffix == ".py" or (path / "__init__.py").exists()
        if not is_code or module == "__init__":
            continue
        shown = f"hub/{path.name}" if path.suffix else f"hub/{path.name}/"
        row = test_architecture.row_of(module)
        place = section(text, titles[row]) if row in titles else text
        if f"`{shown}`" not in place:
            lost.append(f"{shown} is not named under {row}")
    assert not lost


def test_every_file_a_page_names_exists():
    lost = []
    for path in PAGES:
        if path.name == "adding-an-integration.md":
            continue  # it invents an integration
        for code in codes(path.read_text()):
            if re.fullmatch(r"(hub|tests|integrations|docs|bench|templates)/[\w./-]+", code):
                if not (ROOT / code).exists() and code != "bench/latest.json":  # a bench writes it
                    lost.append(f"{name_of(path)}: {code}")
            elif re.fullmatch(r"hub(\.\w+)+", code) and not _importable(code):
                # A permission reads like a name in a module.
                if not re.fullmatch(r"hub\.[a-z]+_[a-z]+", code):
                    lost.append(f"{name_of(path)}: {code}")
    assert not lost


def _importable(dotted: str) -> bool:
    parts = dotted.removesuffix("()").split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        try:
            for name in parts[cut:]:
                found = getattr(found, name)
        except AttributeError:
            return False
        return True
    return False


def test_every_model_has_an_admin():
    from django.apps import apps
    from django.contrib import admin

    ours = set(apps.get_app_config("hub").get_models())
    assert ours - set(admin.site._registry) == set()


# --- links, commands, settings -------------------------------------------------------------------


def _anchors(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", title).lower()).replace(" ", "-")
        for title in titles
    }


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        place, _, anchor = target.partition("#")
        goal = (path.parent / place).resolve() if place else path
        assert goal.exists(), target
        assert goal.is_relative_to(ROOT), target
        if anchor:
            assert anchor in _anchors(goal), target


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_a_page_speaks_of_this_repository_only(path):
    """Names of pages resolve, and absolute paths are those of the world an operator knows."""
    text = path.read_text()
    known = {one.name for one in PAGES}
    for mentioned in re.findall(r"[\w./-]+\.md\b", text):
        assert Path(mentioned).name in known, mentioned
    of_the_world = {"health", "_sim", "admin", "srv", "etc", "proc", "rest", "crm", "parcels"}
    for start in re.findall(r"(?<![\w./:>~<)\]}’-])/([a-z_]+)/", text):
        assert start in of_the_world, start


def _makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))


def _commands() -> set[str]:
    folder = ROOT / "hub" / "management" / "commands"
    return {path.stem for path in folder.glob("*.py") if path.stem != "__init__"}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_commands_that_are_named_exist(path):
    text = path.read_text()
    code = "\n".join([*re.findall(r"```.*?```", text, re.S), *(f"`{one}`" for one in codes(text))])
    code += "\n".join(line for line in text.splitlines() if line.startswith("    "))
    for target in re.findall(r"\bmake ([a-z]+)", code):
        assert target in _makefile_targets(), f"make {target}"
    from django.core.management import get_commands

    for command in re.findall(r"manage\.py ([a-z_]+)", code):
        assert command in get_commands(), f"manage.py {command}"
    for command in re.findall(r"`(hub_[a-z]+)", code):
        assert command in _commands() | {"hub_due"}, command


def test_every_command_is_explained():
    text = page("operating.md")
    assert {name for name in _commands() if f"manage.py {name}" not in text} == set()


def test_the_makefile_s_promises_are_in_the_readme():
    text = (ROOT / "README.md").read_text()
    for target in ("run", "test", "check", "docs", "bench", "weaknesses", "help"):
        assert f"make {target}" in text


_READERS = {"str", "int", "bool", "db_url_config", "email_url", "_number", "_whole", "_switch",
            "_words", "_secret", "_schedule"}  # fmt: skip


def _settings_read() -> dict[str, float | None]:
    """Every variable that is read from the environment, with its default when it is a number."""
    found: dict[str, float | None] = {}
    for path, tree in trees("hub"):
        if path.name == "supervisor.py":
            continue  # its marker is written by it, too; nobody sets it
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and node.args):
                continue
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            first = node.args[0]
            if name not in _READERS or not isinstance(first, ast.Constant):
                continue
            if not re.fullmatch(r"[A-Z][A-Z_]+", str(first.value)):
                continue
            default = node.args[1] if len(node.args) > 1 else None
            value = default.value if isinstance(default, ast.Constant) else None
            found[str(first.value)] = value if isinstance(value, int | float) else None
    return found


def _says(cell: str, default: float) -> bool:
    return default in [float(number) for number in re.findall(r"\d+(?:\.\d+)?", cell)]


def test_every_setting_is_in_the_table_with_its_default():
    table = {
        cells[0].strip("`"): cells
        for cells in rows_of(section(page("operating.md"), "The environment"))
    }
    read = _settings_read()
    assert len(read) > 30
    assert set(read) - set(table) == set()
    named = {name for name in table if re.fullmatch(r"[A-Z][A-Z_]+", name)}
    assert named - set(read) == set()
    wrong = [
        name
        for name, default in read.items()
        if default is not None and not _says(table[name][1], default)
    ]
    assert not wrong


def test_health_addresses_are_those_there_are():
    from hub.urls import urlpatterns

    text = page("operating.md")
    found = {
        f"/{pattern.pattern}{inner.pattern}"
        for pattern in urlpatterns
        if str(pattern.pattern) == "health/"
        for inner in getattr(pattern, "url_patterns", [])
    }
    assert found
    assert {address for address in found if f"`{address}`" not in text} == set()


def test_every_goal_of_the_bench_is_explained():
    goals = importlib.import_module("bench.goals").GOALS
    text = page("bench.md")
    assert {name for name in goals if not re.search(rf"\b{name}\b", text)} == set()


# --- code in the pages ---------------------------------------------------------------------------


def _python_blocks() -> list[tuple[str, str]]:
    found = []
    for path in PAGES:
        for code in re.findall(r"```python[^\n]*\n(.*?)```", path.read_text(), re.S):
            found.append((name_of(path), code))
    return found


@pytest.mark.parametrize(("path", "code"), _python_blocks(), ids=lambda value: value[:24])
def test_python_in_the_pages_names_what_exists(path, code):
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hub"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                assert hasattr(module, alias.name) or _importable(inside), inside


def test_the_walk_through_passes_the_conformance_tests(tmp_path):
    """The integration the page builds is written to disk as it stands there, and asked."""
    blocks = re.findall(
        r"```python (integrations/\S+)\n(.*?)```", page("adding-an-integration.md"), re.S
    )
    assert {Path(name).name for name, _ in blocks} == {
        "errors.py", "connector.py", "apps.py", "test_conformance.py",
    }  # fmt: skip
    for name, code in blocks:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(code)
    folder = tmp_path / "integrations" / "parcelo"
    for package in (folder, folder / "tests"):
        (package / "__init__.py").write_text("")
    (tmp_path / "conftest.py").write_text(
        "from pathlib import Path\n\nimport integrations\n\n"
        "integrations.__path__.append(str(Path(__file__).parent / 'integrations'))\n"
    )
    config = importlib.import_module("hub.registry").IntegrationConfig
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:django",
         "-p", "no:xdist", "-c", os.devnull, "--rootdir", str(tmp_path),
         "--import-mode=importlib", str(folder / "tests")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    assert re.search(r"\b[2-9]\d passed", done.stdout), done.stdout[-400:]
    names: dict[str, Any] = {}
    exec((folder / "apps.py").read_text(), names)
    assert issubclass(names["ParceloConfig"], config)


# --- decisions and changelog ---------------------------------------------------------------------


def test_decisions_are_numbered_and_say_what_was_turned_down():
    pages = sorted((DOCS / "decisions").glob("*.md"))
    assert [int(path.name[:4]) for path in pages] == list(range(1, len(pages) + 1))
    for path in pages:
        text = path.read_text()
        assert text.startswith(f"# {int(path.name[:4])}. "), path.name
        for part in ("**Chosen.**", "**Why.**", "**Turned down.**", "**Price.**"):
            assert part in text, f"{path.name} lacks {part}"


def test_the_changelog_has_a_place_for_what_comes():
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()
