"""Imports point down, integrations do no I/O, and only the settings name an integration.

The tables below are docs/architecture.md in executable form. A new module of `hub` is placed by its
noun, then by its row, and gets its line here.
"""

import ast
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

FRAME, RULES, THINGS, VERBS, EDGES, SHIPPED_TESTS = (
    "frame", "rules", "things", "verbs", "edges", "testing",
)  # fmt: skip

# Each module or package directly below `hub`, and the row it stands in.
ROWS: dict[str, frozenset[str]] = {
    RULES: frozenset(
        {
            "addresses",
            "answers",
            "contract",
            "doubts",
            "effects",
            "keys",
            "looks",
            "ownership",
            "policy",
            "polls",
            "redaction",
            "routes",
            "sends",
            "states",
            "transforms",
            "verdicts",
            "waits",
            "advice",
            "candidates",
            "reasons",
            "urgency",
        }
    ),
    THINGS: frozenset(
        {
            "credentials",
            "http",
            "indexes",
            "link",
            "logs",
            "migrations",
            "models",
            "registry",
            "remote",
            "signals",
            "sql",
            "sqlite",
            "tuning",
        }
    ),
    VERBS: frozenset(
        {
            "access",
            "bell",
            "cases",
            "claims",
            "delivery",
            "settling",
            "work",
            "desk",
            "entities",
            "gate",
            "health",
            "inbox",
            "moves",
            "outbox",
            "reconcile",
            "review",
            "situation",
            "story",
            "sweep",
        }
    ),
    EDGES: frozenset(
        {"tasks", "management", "site", "admin", "panel", "api", "urls", "checks", "health_views"}
    ),
    FRAME: frozenset({"settings", "wsgi", "apps"}),
    SHIPPED_TESTS: frozenset({"testing"}),
}
# The rows a row may import. Within a row a module may build on a neighbour, but never in a circle.
BELOW: dict[str, frozenset[str]] = {
    RULES: frozenset({RULES}),
    THINGS: frozenset({RULES, THINGS}),
    VERBS: frozenset({RULES, THINGS, VERBS}),
    EDGES: frozenset({RULES, THINGS, VERBS, EDGES}),
    FRAME: frozenset(),
    SHIPPED_TESTS: frozenset({RULES, THINGS, VERBS, SHIPPED_TESTS}),
}
# Django asks an app's config to import what registers itself.
EXCEPTIONS: dict[str, frozenset[str]] = {"apps": frozenset({"checks", "tasks", "site"})}

NETWORK = frozenset(
    {"aiohttp", "asyncio", "ftplib", "h11", "http", "httpcore", "httpx", "requests", "select",
     "smtplib", "socket", "socketserver", "ssl", "urllib.request", "urllib3"}
)  # fmt: skip
DATABASE = frozenset({"django.db", "psycopg", "sqlite3"})
OUTSIDE = frozenset(
    {"multiprocessing", "os", "pathlib", "random", "secrets", "shutil", "signal", "subprocess",
     "tempfile", "threading", "time"}
)  # fmt: skip
# A rule is given values: no framework but its translations, no database, network, clock or chance.
RULES_MAY_NOT = NETWORK | DATABASE | OUTSIDE | {"django", "django_q", "environ"}
RULES_MAY_ALL_THE_SAME = frozenset({"django.utils.translation", "django.utils.functional"})
CLOCK_CALLS = frozenset({"now", "utcnow", "today"})

HTTPX_AT_HOME_IN = ("hub/http.py", "hub/testing/")

INTEGRATION_MAY = frozenset({"hub.contract", "hub.states", "hub.transforms", "hub.registry"})
INTEGRATION_TESTS_MAY = INTEGRATION_MAY | {"hub.testing"}
# An integration's own pages may submit; its connector may not.
INTEGRATION_PAGES_MAY = INTEGRATION_MAY | {"hub.outbox"}
INTEGRATION_PAGES = frozenset({"views", "admin", "urls", "api", "pages"})
INTEGRATION_MAY_NOT = NETWORK | DATABASE | OUTSIDE

# Where an integration's name may stand in a text: settings switch it on, the demo connects to it.
NAMED_IN = ("hub/settings.py", "hub/management/", "hub/migrations/")
# Words of plain English, so only their full path counts as naming the integration.
COMMON_WORDS = frozenset({"probe", "rest"})


# --- reading a module ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Module:
    """One source file: its path from the root with `/`, its dotted name, and its tree."""

    path: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def package(self) -> str:
        is_package = self.path.endswith("/__init__.py")
        return self.name if is_package else self.name.rpartition(".")[0]

    @property
    def parts(self) -> list[str]:
        return self.name.split(".")

    def imports(self) -> Iterator[tuple[int, str]]:
        """Give line and dotted name of all that is imported, at the top, inside, or for types."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    parents = self.package.split(".")
                    parents = parents[: len(parents) - node.level + 1]
                    base = ".".join([*parents, base] if base else parents)
                # `from hub import outbox` imports the module as well as `import hub.outbox` does.
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
            elif isinstance(node, ast.Call) and _called(node) in {"import_module", "__import__"}:
                for argument in node.args[:1]:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        yield node.lineno, argument.value

    def texts(self) -> Iterator[tuple[int, str]]:
        """Give line and value of each string that is no docstring."""
        docstrings = set()
        for node in ast.walk(self.tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
                docstrings.add(id(body[0].value))
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if id(node) not in docstrings:
                    yield node.lineno, node.value


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _within(name: str, names: Set[str]) -> bool:
    """Whether `name` is one of `names` or something inside one of them."""
    return any(name == other or name.startswith(f"{other}.") for other in names)


def row_of(unit: str) -> str | None:
    """Return the row of a module directly below `hub`, None when it has no place yet."""
    return next((row for row, units in ROWS.items() if unit in units), None)


def read(folder: str) -> list[Module]:
    return [
        Module(path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(), str(path)))
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


def integrations() -> frozenset[str]:
    return frozenset(
        path.name for path in (ROOT / "integrations").iterdir() if (path / "__init__.py").exists()
    )


# --- the rules -----------------------------------------------------------------------------------


def problems_in(module: Module, installed: frozenset[str]) -> list[str]:
    """Return what this module does that its place does not allow, a line each."""
    check = _problems_in_hub if module.parts[0] == "hub" else _problems_in_integration
    return [f"{module.path}:{line}: {text}" for line, text in check(module, installed)]


def _problems_in_hub(module: Module, installed: frozenset[str]) -> Iterator[tuple[int, str]]:
    unit = module.parts[1] if len(module.parts) > 1 else ""
    if not unit:
        if any(module.imports()):
            yield 1, "the package itself imports nothing"
        return
    row = row_of(unit)
    if row is None:
        yield 1, f"hub.{unit} has no row: place it in ROWS of tests/test_architecture.py"
        return
    for line, name in module.imports():
        parts = name.split(".")
        if parts[0] == "hub" and len(parts) > 1 and parts[1] != unit:
            other = row_of(parts[1])
            if parts[1] in EXCEPTIONS.get(unit, frozenset()):
                continue
            if other is not None and other not in BELOW[row]:
                yield line, f"{row} may not import {other} ({name})"
        if parts[0] in {"integrations", "tests", "bench"}:
            yield line, f"hub may not import {parts[0]} ({name})"
        if parts[0] == "httpx" and not module.path.startswith(HTTPX_AT_HOME_IN):
            yield line, "only hub/http.py imports httpx"
        if row == RULES and _within(name, RULES_MAY_NOT):
            if not _within(name, RULES_MAY_ALL_THE_SAME):
                yield line, f"a rule may not import {name}"
    if row == RULES:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and _called(node) in CLOCK_CALLS:
                yield node.lineno, f"a rule is given its time, it does not ask {_called(node)}()"
    if not module.path.startswith(NAMED_IN):
        yield from _integrations_named(module, installed)


def _integrations_named(module: Module, installed: frozenset[str]) -> Iterator[tuple[int, str]]:
    for line, text in module.texts():
        for name in sorted(installed):
            word = name not in COMMON_WORDS and re.search(rf"(?i)\b{name}\b", text)
            if word or re.search(rf"\bintegrations[./]{name}\b", text):
                yield line, f"only hub/settings.py names an integration ({name})"


def _problems_in_integration(
    module: Module, installed: frozenset[str]
) -> Iterator[tuple[int, str]]:
    if len(module.parts) < 2:
        if any(module.imports()):
            yield 1, "the package itself imports nothing"
        return
    own = ".".join(module.parts[:2])
    inside = module.parts[2] if len(module.parts) > 2 else ""
    in_tests, in_simulator = inside == "tests", inside == "simulator"
    if in_tests:
        allowed = INTEGRATION_TESTS_MAY
    elif inside in INTEGRATION_PAGES:
        allowed = INTEGRATION_PAGES_MAY
    else:
        allowed = INTEGRATION_MAY
    for line, name in module.imports():
        head = name.split(".")[0]
        if in_simulator:
            if head == "hub" or (
                head == "integrations" and not _within(name, {f"{own}.simulator"})
            ):
                yield line, f"a stand-in knows nothing of the hub or the connector ({name})"
            continue
        if head == "hub" and not _within(name, allowed):
            yield line, f"an integration may import {', '.join(sorted(allowed))}, not {name}"
        if head == "integrations" and not _within(name, {own}):
            yield line, f"integrations share nothing ({name})"
        if not in_tests:
            if _within(name, {f"{own}.simulator"}):
                yield line, "a connector never imports its stand-in"
            if _within(name, {f"{own}.tests"}):
                yield line, "what ships does not import its tests"
            if inside not in INTEGRATION_PAGES | {"models", "migrations"}:
                if _within(name, INTEGRATION_MAY_NOT):
                    yield line, f"an integration does no I/O of its own ({name})"
        if head == "httpx":
            yield line, "an integration never imports httpx"


def circles(modules: list[Module]) -> list[str]:
    """Return the import circles between the modules directly below `hub`."""
    graph: dict[str, set[str]] = {}
    for module in modules:
        if len(module.parts) < 2 or module.parts[1] == "migrations":
            continue
        unit = module.parts[1]
        for _, name in module.imports():
            parts = name.split(".")
            if parts[0] == "hub" and len(parts) > 1 and parts[1] != unit and row_of(parts[1]):
                graph.setdefault(unit, set()).add(parts[1])
    found = []

    def visit(unit: str, path: list[str]) -> None:
        if unit in path:
            circle = path[path.index(unit) :]
            if circle[0] == min(circle):  # the same circle is met once from each of its members
                found.append(" -> ".join([*circle, unit]))
            return
        for other in sorted(graph.get(unit, ())):
            visit(other, [*path, unit])

    for unit in sorted(graph):
        visit(unit, [])
    return sorted(set(found))


# --- the tests -----------------------------------------------------------------------------------


def test_each_module_keeps_to_its_place():
    modules = [*read("hub"), *read("integrations")]
    assert len(modules) > 5, "the search for modules finds nothing"
    installed = integrations()
    problems = [problem for module in modules for problem in problems_in(module, installed)]
    assert not problems, "\n" + "\n".join(problems)


def test_neighbours_do_not_import_in_a_circle():
    assert circles(read("hub")) == []


def test_no_module_stands_in_two_rows():
    units = [unit for row in ROWS.values() for unit in row]
    assert len(units) == len(set(units))


REFUSED = [
    ("hub/policy.py", "from hub.models import Operation"),
    ("hub/policy.py", "from . import outbox"),
    ("hub/policy.py", "import time"),
    ("hub/policy.py", "def f():\n    import random"),
    ("hub/policy.py", "from django.db import models"),
    ("hub/policy.py", "from django.utils import timezone"),
    ("hub/policy.py", "import datetime\nat = datetime.datetime.now(datetime.UTC)"),
    ("hub/models/operations.py", "from hub.outbox import submit"),
    ("hub/models/operations.py", "from ..gate import pause"),
    ("hub/delivery.py", "from hub.admin import operations"),
    ("hub/delivery.py", "import httpx"),
    ("hub/delivery.py", "from integrations.parcelo import connector"),
    ("hub/delivery.py", "import importlib\nimportlib.import_module('integrations.parcelo')"),
    ("hub/health.py", "name = 'integrations.probe'"),
    ("hub/health.py", "name = 'Parcelo'"),
    ("hub/settings.py", "from hub.keys import fingerprint"),
    ("hub/somewhere.py", "x = 1"),
    ("hub/__init__.py", "from hub.apps import HubConfig"),
    ("integrations/parcelo/connector.py", "from hub.outbox import submit"),
    ("integrations/parcelo/connector.py", "from hub import models"),
    ("integrations/parcelo/connector.py", "import httpx"),
    ("integrations/parcelo/connector.py", "import time"),
    ("integrations/parcelo/connector.py", "from integrations.probe import connector"),
    ("integrations/parcelo/connector.py", "from ..probe.connector import Probe"),
    ("integrations/parcelo/connector.py", "from .simulator import store"),
    ("integrations/parcelo/connector.py", "from hub.testing import FakeRemote"),
    ("integrations/parcelo/simulator/server.py", "from hub.contract import Call"),
    ("integrations/parcelo/simulator/server.py", "from ..fields import NAMES"),
    ("integrations/parcelo/tests/test_fields.py", "from hub.delivery import drain"),
]
ALLOWED = [
    ("hub/policy.py", "from hub.states import State"),
    ("hub/policy.py", "from django.utils.translation import gettext_lazy"),
    ("hub/delivery.py", "from hub.policy import decide\nfrom hub.models import Operation"),
    ("hub/http.py", "import asyncio\nimport httpx"),
    ("hub/testing/remote.py", "import httpx"),
    ("hub/health.py", "label = 'probe'"),
    ("hub/outbox.py", '"""Say, to Parcelo."""'),
    ("hub/settings.py", "INTEGRATIONS = ['integrations.parcelo']"),
    ("integrations/parcelo/connector.py", "from hub.contract import Call\nfrom .fields import A"),
    ("integrations/parcelo/views.py", "from hub.outbox import submit"),
    ("integrations/parcelo/simulator/server.py", "import asyncio\nfrom .store import Store"),
    ("integrations/parcelo/tests/test_conformance.py", "from hub.testing import FakeRemote"),
    ("integrations/parcelo/tests/test_simulator.py", "from ..simulator.store import Store"),
]


@pytest.mark.parametrize(("path", "source"), REFUSED)
def test_it_sees_what_is_out_of_place(path, source):
    module = Module(path, ast.parse(source))
    assert problems_in(module, frozenset({"parcelo", "probe"}))


@pytest.mark.parametrize(("path", "source"), ALLOWED)
def test_it_lets_stand_what_is_in_place(path, source):
    module = Module(path, ast.parse(source))
    assert problems_in(module, frozenset({"parcelo", "probe"})) == []


def test_it_sees_a_circle():
    modules = [
        Module("hub/outbox.py", ast.parse("from hub import gate")),
        Module("hub/gate.py", ast.parse("def f():\n    from hub.sweep import sweep")),
        Module("hub/sweep.py", ast.parse("import hub.outbox")),
    ]
    assert circles(modules) == ["gate -> sweep -> outbox -> gate"]
