"""The bench runs from end to end, small: its numbers say nothing here, its counts do."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.goals import GOALS, Value

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.sqlite  # it starts databases of its own, so once is enough
@pytest.mark.processes
def test_a_quick_bench_carries_everything_once_and_writes_its_goals(tmp_path: Path) -> None:
    """Each run counts calls and duplicates at the echo, and ends loudly when they differ."""
    out = tmp_path / "latest.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--only", "G1", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(out.read_text())
    assert told["quick"] is True
    assert set(told["goals"]) == {"G1"}
    goal = told["goals"]["G1"]
    assert goal["value"] > 0
    assert (goal["floor"], goal["ambition"], goal["unit"]) == (1.5, 2.5, "ratio")
    assert goal["reached"] is (goal["value"] >= 1.5)
    assert told["seconds"]["ops_per_second_hub"] > 0


@pytest.mark.parametrize(
    ("goal", "value", "reached"),
    [("G1", 1.5, True), ("G1", 1.49, False), ("G6", 20.0, True), ("G6", 20.1, False)],
)
def test_a_floor_is_judged_in_its_own_direction(goal: str, value: float, reached: bool) -> None:
    assert Value(goal, value).as_dict()["reached"] is reached


def test_all_goals_are_there() -> None:
    assert {name.partition("_")[0] for name in GOALS} == {f"G{n}" for n in range(1, 13)}
