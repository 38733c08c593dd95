"""The planted weaknesses themselves: each can be planted and taken back, and each has its tests.

`make weaknesses` plants them all and runs those tests. Here a few are run for real, and what could
make the rest prove nothing is looked at: a patch without its target, a test that is gone.
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from tests.model.weaknesses import WEAKNESSES as IN_THE_MODEL
from tests.weaknesses import VARIABLE, patches
from tests.weaknesses.__main__ import Bench, control, try_one
from tests.weaknesses.patches import Source, Text, Void
from tests.weaknesses.planted import BY_ID, SQLITE, WEAKNESSES, Weakness
from tests.weaknesses.plug import with_site

ROOT = Path(__file__).resolve().parent.parent
QUICKEST = ("W7", "W8", "W24")


def _numbers(text: str) -> set[str]:
    """The ids of a list such as "1-8 10"."""
    found: set[str] = set()
    for part in text.split():
        first, _, last = part.partition("-")
        found |= {f"W{n}" for n in range(int(first), int(last or first) + 1)}
    return found


def test_every_weakness_of_the_engine_is_planted() -> None:
    """Those of files, the inbox and reconciliation (W9, W16-W18, W23, W33) come with them."""
    assert set(BY_ID) == _numbers("1-8 10-15 19-22 24-32")
    assert len(BY_ID) == len(WEAKNESSES)
    assert set(BY_ID) >= set(IN_THE_MODEL)


def _params() -> list[object]:
    """Those of one database's settings can be planted there only."""
    return [
        pytest.param(
            one,
            id=one.id,
            marks=[pytest.mark.sqlite]
            if any(p.module == "hub.settings" for p in one.patches)
            else [],
        )
        for one in WEAKNESSES
    ]


@pytest.mark.parametrize("weakness", _params())
def test_it_can_be_planted_and_taken_back(weakness: Weakness) -> None:
    """`Void` here: the engine was changed, and this weakness has to be planted anew."""
    targets = {(patch.module, _name(patch)) for patch in weakness.patches}
    before = {target: _state(*target) for target in targets}
    undo = patches.apply(weakness.patches)
    try:
        assert all(_state(*target) != before[target] for target in targets)
    finally:
        undo()
    assert {target: _state(*target) for target in targets} == before


def _name(patch: patches.Patch) -> str:
    return patch.function if isinstance(patch, Source) else patch.name


def _state(module: str, name: str) -> object:
    found: object = sys.modules[module] if module in sys.modules else __import__(module)
    for part in re.split(r"[./]", name):
        if isinstance(found, dict):
            found = found[{"False": False}.get(part, part)]
        else:
            found = getattr(found, part)
    return getattr(found, "__code__", found)


def test_a_patch_without_its_target_is_void() -> None:
    module = ModuleType("m")
    exec("TEXT = 'a b a'\ndef f(): return 1", vars(module))
    for patch in (
        Text("m", "TEXT", "c", "d"),
        Text("m", "TEXT", "a", "d"),
        Text("m", "OTHER", "a", "d"),
        Text("m", "TEXT/a", "a", "d"),
        Source("m", "g", "1", "2"),
        Source("m", "TEXT", "1", "2"),
    ):
        with pytest.raises(Void):
            patch.apply(module)


def test_every_test_that_has_to_see_one_exists() -> None:
    nodes = {node for one in WEAKNESSES for node in one.caught_by}
    for node in sorted(nodes):
        file, _, rest = node.partition("::")
        name = rest.partition("[")[0]
        assert f"def {name}(" in (ROOT / file).read_text(), node
    assert all(one.caught_by and one.databases for one in WEAKNESSES)


def test_a_process_that_a_test_starts_is_weakened_too() -> None:
    """Its modules are loaded after the weakness was planted, as in a worker."""
    program = (
        "import django; django.setup()\n"
        "from hub import moves\n"
        "print(moves._SETTLE_POSTGRES.count('o.lease_token = v.token'))"
    )
    said = {}
    for weakness in ("", "W3"):
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "hub.settings"}
        if weakness:
            environment = with_site(environment | {VARIABLE: weakness})
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said[weakness] = done.stdout.strip()
    assert said == {"": "1", "W3": "0"}


def test_a_process_that_cannot_be_weakened_does_not_start() -> None:
    environment = with_site({**os.environ, VARIABLE: "W0"})
    done = subprocess.run(
        [sys.executable, "-c", "print('sound')"],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stdout == ""
    assert "could not be planted" in done.stderr


@pytest.mark.processes
@pytest.mark.sqlite
def test_the_quickest_are_caught() -> None:
    """A weakness planted for real fails its tests, and they pass without it."""
    wanted = [BY_ID[one] for one in QUICKEST]
    assert all(one.databases == (SQLITE,) for one in wanted)
    bench = Bench(None)
    try:
        sound = control(bench, wanted)
        assert set(sound.values()) == {""}, sound
        with ThreadPoolExecutor(2) as pool:
            for seen in pool.map(lambda one: try_one(bench, one, sound), wanted):
                assert not seen.survived, (seen.weakness.id, seen.trouble)
                assert set(seen.caught) == set(seen.weakness.caught_by)
    finally:
        bench.end()
