"""The goals and what they demand; the judgement of what was measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Goal:
    """One goal: `floor` must be reached, `ambition` is welcome."""

    name: str
    text: str
    floor: float
    ambition: float
    unit: str = "ratio"
    least: bool = True
    """The value must be at least the floor; else at most."""

    def reached(self, value: float) -> bool:
        return value >= self.floor if self.least else value <= self.floor

    def ambitious(self, value: float) -> bool:
        return value >= self.ambition if self.least else value <= self.ambition


def _at_most(name: str, text: str, floor: float, ambition: float, unit: str = "ratio") -> Goal:
    return Goal(name, text, floor, ambition, unit, least=False)


GOALS = {
    goal.name: goal
    for goal in (
        Goal("G1", "one drain against bare httpx, 0 ms", 1.5, 2.5),
        Goal("G2", "one drain against tuned Django-Q2", 3.5, 7.0),
        Goal("G2_two_drains", "two drains against tuned Django-Q2", 3.5, 7.0),
        Goal("G3", "one drain against Procrastinate", 2.5, 5.0),
        Goal("G3_two_drains", "two drains against Procrastinate", 2.5, 5.0),
        Goal("G4", "20 ms, 50 in flight: share of the ceiling, keep-alive", 0.75, 0.90),
        Goal("G4_closing", "the same without keep-alive", 0.55, 0.70),
        Goal("G5", "two drains against one, PostgreSQL", 1.15, 1.4),
        _at_most("G6", "commit to confirmed less the remote, PostgreSQL, p95", 20.0, 8.0, "ms"),
        _at_most("G7", "commit to confirmed less the remote, SQLite, p95", 80.0, 30.0, "ms"),
        _at_most("G8", "claim and settle, a million finished rows against few", 1.3, 1.1),
        _at_most("G8_stream", "claim and settle, one long stream against many", 3.0, 1.5),
        Goal("G9", "SQLite against PostgreSQL, one drain", 0.8, 1.1),
        _at_most("G10", '"database is locked" beside a busy drain', 0.0, 0.0, "errors"),
        _at_most("G11", "web write on SQLite beside a busy drain, p99", 150.0, 60.0, "ms"),
        _at_most("G12", "a quiet connection behind 15,000 of another, p95", 150.0, 75.0, "ms"),
    )
}


@dataclass(frozen=True)
class Value:
    """What was measured for a goal, and how far single rounds lay apart."""

    goal: str
    value: float
    low: float | None = None
    high: float | None = None

    def as_dict(self) -> dict[str, object]:
        goal = GOALS[self.goal]
        told = asdict(self)
        told.pop("goal")
        return {
            **told,
            "floor": goal.floor,
            "ambition": goal.ambition,
            "reached": goal.reached(self.value),
            "ambition_reached": goal.ambitious(self.value),
            "unit": goal.unit,
            "text": goal.text,
        }

    def line(self) -> str:
        goal = GOALS[self.goal]
        spread = "" if self.low is None else f"{self.low:.2f}-{self.high:.2f}"
        verdict = "MISSED" if not goal.reached(self.value) else "reached"
        if goal.ambitious(self.value):
            verdict = "ambition"
        sign = ">=" if goal.least else "<="
        return (
            f"{goal.name:14} {goal.text:55} {self.value:9.2f} {spread:>12} "
            f"{sign} {goal.floor:g} / {goal.ambition:g} {goal.unit}".ljust(120)
            + f" {verdict}"
        )
