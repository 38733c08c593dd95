"""The exhaustive search: every order of every move, breadth first, so stories found are short."""

import gc
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from tests.model.invariants import INVARIANTS, rests
from tests.model.machine import Machine, start
from tests.model.records import World
from tests.model.rules import Rules, Scenario

MAX_STATES = 400_000


class SearchTooLargeError(Exception):
    """A scenario has more states than a run can afford: lower one of its budgets."""


@dataclass(frozen=True)
class Counterexample:
    """A shortest history that breaks an invariant."""

    scenario: str
    broken: str
    moves: tuple[str, ...]

    def story(self) -> str:
        """Return the history for people, one line per move."""
        lines = [f"{self.scenario}: {self.broken}"]
        lines += [f"  {n:2}. {text}" for n, text in enumerate(self.moves, 1)]
        return "\n".join(lines)


@dataclass(frozen=True)
class Result:
    """What a search found; `states` is how many worlds it has seen."""

    states: int
    happened: frozenset[str]  # the texts of all moves
    counterexample: Counterexample | None


def search(
    scenario: Scenario,
    rules: Rules,
    invariants: Iterable[str] = tuple(INVARIANTS),
    *,
    progress: bool = True,
) -> Result:
    """Search every reachable world; with `progress`, also whether each can come to rest (I21).

    The cyclic collector is off meanwhile: the worlds are tuples without cycles, and walking
    hundreds of thousands of them again and again costs a fifth of the time.
    Raises `SearchTooLargeError` above `MAX_STATES`.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _search(scenario, rules, invariants, progress=progress)
    finally:
        if collecting:
            gc.enable()


def _search(
    scenario: Scenario, rules: Rules, invariants: Iterable[str], *, progress: bool
) -> Result:
    machine = Machine(scenario, rules)
    checks = [INVARIANTS[name] for name in invariants]
    first = start(scenario)
    number: dict[object, int] = {first.key_of(): 0}
    came_from: list[tuple[int, str]] = [(-1, "")]
    before: list[list[int]] = [[]]  # faultless predecessors, for I21
    resting: list[int] = []
    happened: set[str] = set()
    queue: deque[tuple[int, World]] = deque([(0, first)])
    while queue:
        here, world = queue.popleft()
        for check in checks:
            if broken := check(scenario, world):
                return Result(
                    len(number), frozenset(happened), _tell(scenario, broken, came_from, here)
                )
        if rests(world):
            resting.append(here)
        for move in machine.moves(world):
            happened.add(move.text)
            key = move.world.key_of()
            there = number.get(key)
            if there is None:
                there = len(number)
                if there >= MAX_STATES:
                    raise SearchTooLargeError(f"{scenario.name} has more than {MAX_STATES} states")
                number[key] = there
                came_from.append((here, move.text))
                before.append([])
                queue.append((there, move.world))
            if progress and not move.fault:
                before[there].append(here)
    if progress and (stuck := _stuck(before, resting)) is not None:
        broken = "I21: from here nothing comes to rest without a person or a fault"
        return Result(len(number), frozenset(happened), _tell(scenario, broken, came_from, stuck))
    return Result(len(number), frozenset(happened), None)


def _stuck(before: list[list[int]], resting: list[int]) -> int | None:
    """Return the first world from which no faultless path leads to rest."""
    good = bytearray(len(before))
    todo = list(resting)
    for n in todo:
        good[n] = 1
    while todo:
        for n in before[todo.pop()]:
            if not good[n]:
                good[n] = 1
                todo.append(n)
    bad = good.find(0)
    return None if bad < 0 else bad


def _tell(
    scenario: Scenario, broken: str, came_from: list[tuple[int, str]], at: int
) -> Counterexample:
    moves = []
    while at:
        at, text = came_from[at]
        moves.append(text)
    return Counterexample(scenario.name, broken, tuple(reversed(moves)))
