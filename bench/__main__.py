"""Measures the goals beside the rivals, prints a table, writes `bench/latest.json`."""

from __future__ import annotations

import argparse
import json
import platform
import signal
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import runs, waits
from bench.goals import GOALS, Value
from bench.machine import POSTGRESQL, ROOT, SQLITE, Machine, Store

PACKAGES = ("django", "django-q2", "psycopg", "httpx", "h11", "procrastinate")
POOLS = ((50, 1), (10, 5), (1, 10))


class Bench:
    """The sizes of a run, what it measures, and what it found."""

    def __init__(self, machine: Machine, wanted: set[str], *, quick: bool, rounds: int) -> None:
        self.machine, self.wanted, self.quick = machine, wanted, quick
        self.rounds = 1 if quick else rounds
        self.n = 300 if quick else 10_000
        self.rival_n = 150 if quick else 2_000
        self.values: list[Value] = []
        self.seconds: dict[str, Any] = {}
        self._filled: dict[tuple[str, int], Store] = {}

    def wants(self, *goals: str) -> bool:
        return bool(self.wanted.intersection(goals))

    def filled(self, kind: str, n: int) -> Store:
        """A database with `n` operations on one of two connections, filled once."""
        if (kind, n) not in self._filled:
            say(f"filling {kind} with {n:,} operations")
            store, told = runs.filled(self.machine, kind, f"filled_{n}", n, ("bench", "quiet"))
            self.seconds |= {f"{name}_{kind}": value for name, value in told.items()}
            self._filled[kind, n] = store
        return self._filled[kind, n]

    def keep(self, goal: str, value: float, each: Sequence[float] = ()) -> None:
        """Note what was found, if it was asked for."""
        if goal in self.wanted:
            low, high = (min(each), max(each)) if each else (None, None)
            self.values.append(Value(goal, value, low, high))

    # --- throughput ---

    def throughput(self) -> None:
        """G1 to G5 and G9: all systems in turn, round after round; ratios of medians."""
        machine, n, rival_n = self.machine, self.n, self.rival_n
        systems: dict[str, Callable[[], float]] = {}
        if self.wants("G1", "G2", "G3", "G5", "G9"):
            systems["hub"] = lambda: runs.hub(machine, self.filled(POSTGRESQL, n), n)
        if self.wants("G2_two_drains", "G3_two_drains", "G5"):
            systems["hub_two"] = lambda: runs.hub(machine, self.filled(POSTGRESQL, n), n, drains=2)
        if self.wants("G9"):
            systems["hub_sqlite"] = lambda: runs.hub(machine, self.filled(SQLITE, n), n)
        if self.wants("G4"):
            systems["hub_20ms"] = lambda: runs.hub(
                machine, self.filled(POSTGRESQL, n), n, latency=20
            )
        if self.wants("G4_closing"):
            systems["hub_20ms_closing"] = lambda: runs.hub(
                machine, self.filled(POSTGRESQL, n), n, latency=20, keep_alive=False
            )
        if self.wants("G1"):
            for pools, size in POOLS:
                systems[f"httpx_{pools}x{size}"] = partial(
                    runs.bare_httpx, machine, rival_n, pools, size
                )
        if self.wants("G2", "G2_two_drains"):
            systems["q2"] = lambda: runs.raw_q2(machine, self.filled(POSTGRESQL, 0), rival_n)
        if self.wants("G3", "G3_two_drains"):
            for concurrency in (10, 50):
                systems[f"procrastinate_{concurrency}"] = partial(
                    runs.procrastinate, machine, rival_n, concurrency
                )
        rates: dict[str, list[float]] = {name: [] for name in systems}
        for number in range(self.rounds):
            for name, run in systems.items():
                rates[name].append(run())
                say(f"round {number + 1}: {name:20} {rates[name][-1]:8,.0f} operations/s")
        for name, each in rates.items():
            self.seconds[f"ops_per_second_{name}"] = statistics.median(each)
        self._compare("G1", rates, "hub", "httpx_")
        self._compare("G2", rates, "hub", "q2")
        self._compare("G2_two_drains", rates, "hub_two", "q2")
        self._compare("G3", rates, "hub", "procrastinate_")
        self._compare("G3_two_drains", rates, "hub_two", "procrastinate_")
        self._compare("G5", rates, "hub_two", "hub")
        self._compare("G9", rates, "hub_sqlite", "hub")
        for goal, name in (("G4", "hub_20ms"), ("G4_closing", "hub_20ms_closing")):
            if name in rates:
                shares = [rate / (50 / 0.020) for rate in rates[name]]
                self.keep(goal, statistics.median(shares), shares)

    # --- waits ---

    def waits(self) -> None:
        """G6, G7, G10, G11, G12."""
        machine = self.machine
        for goal, kind in (("G6", POSTGRESQL), ("G7", SQLITE)):
            if self.wants(goal):
                ms = waits.paced(machine, self.filled(kind, 0), 20 if self.quick else 200)
                self.keep(goal, waits.percentile(ms, 0.95))
                self.seconds[f"commit_to_confirmed_p50_ms_{kind}"] = statistics.median(ms)
                self.seconds[f"commit_to_confirmed_most_ms_{kind}"] = max(ms)
                say(f"{goal}: p95 {waits.percentile(ms, 0.95):.1f} ms")
        if self.wants("G12"):
            backlog = self.filled(POSTGRESQL, 1_500 if self.quick else 15_000)
            each = [
                waits.behind(machine, backlog, 5 if self.quick else 30) for _ in range(self.rounds)
            ]
            ms = [one for some in each for one in some]
            self.keep("G12", waits.percentile(ms, 0.95), [waits.percentile(e, 0.95) for e in each])
            self.seconds["quiet_connection_p50_ms"] = statistics.median(ms)
            say(f"G12: p95 {waits.percentile(ms, 0.95):.1f} ms")
        if self.wants("G10", "G11"):
            backlog = self.filled(SQLITE, 20_000 if self.quick else 250_000)
            web = waits.web_writes(machine, backlog, 2.0 if self.quick else 60.0)
            self.keep("G10", web.locked)
            self.keep("G11", waits.percentile(web.ms, 0.99))
            self.seconds["web_writes"] = float(len(web.ms))
            self.seconds["web_write_p50_ms"] = statistics.median(web.ms)
            self.seconds["web_write_most_ms"] = max(web.ms)
            self.seconds["settled_per_second_beside_web_writes"] = web.settled_per_second
            say(f"G10: {web.locked} locked; G11: p99 {waits.percentile(web.ms, 0.99):.1f} ms")

    # --- claims ---

    def claims(self) -> None:
        """G8: claims against history and against one long stream, on the worse database."""
        many, few, long = (20_000, 1_000, 5_000) if self.quick else (1_000_000, 10_000, 200_000)
        # What a database is filled with, the larger one first.
        pairs = {
            "G8": (
                {"finished": many, "alone": 8_000},
                {"finished": few, "alone": 8_000},
            ),
            "G8_stream": (
                {"finished": few, "streamed": long, "later": 12_000},
                {"finished": few, "alone": long, "later": 12_000},
            ),
        }
        for goal, pair in pairs.items():
            if self.wants(goal):
                ratios = [self._claim_ratio(goal, kind, pair) for kind in (POSTGRESQL, SQLITE)]
                self.keep(goal, max(ratios), ratios)

    def _claim_ratio(self, goal: str, kind: str, pair: tuple[dict[str, int], ...]) -> float:
        machine = self.machine
        stores: list[Store] = []
        for number, given in enumerate(pair):
            store = machine.store(kind, f"{goal}_{number}".lower())
            machine.manage(store, "migrate", "--verbosity", "0")
            told = machine.tell(
                runs.HUB, "history", {"url": machine.url(0), **given}, machine.environment(store)
            )
            say(f"{goal} {kind}: {given} made in {told['seconds']:.0f} s")
            stores.append(store)
        spent: list[list[dict[str, float]]] = [[], []]
        for turn in range(self.rounds):
            for number, store in enumerate(stores):
                told = machine.tell(
                    runs.HUB,
                    "cost",
                    {"turns": 15, "batch": 80, "settle_all": turn == 0 and number == 0},
                    machine.environment(store),
                )
                spent[number].append(told)
                if told["parking_turns"]:
                    self.seconds[f"{goal}_parking_seconds_{kind}"] = told["parking_seconds"]
        for name in ("claim", "mark", "settle", "all"):
            for number, which in enumerate(("large", "small")):
                self.seconds[f"{goal}_{kind}_{which}_{name}_ms"] = statistics.median(
                    one[name] for one in spent[number]
                )
        for store in stores:
            machine.drop(store)
        say(
            f"{goal} {kind}: {self.seconds[f'{goal}_{kind}_large_all_ms']:.1f} ms against "
            f"{self.seconds[f'{goal}_{kind}_small_all_ms']:.1f}"
        )
        return (
            self.seconds[f"{goal}_{kind}_large_all_ms"]
            / self.seconds[f"{goal}_{kind}_small_all_ms"]
        )

    def _compare(self, goal: str, rates: dict[str, list[float]], ours: str, theirs: str) -> None:
        """Our median against the best median of those whose name is, or begins with, `theirs`."""
        rivals = [
            each
            for name, each in rates.items()
            if name == theirs or (theirs.endswith("_") and name.startswith(theirs))
        ]
        if goal not in self.wanted or ours not in rates or not rivals:
            return
        best = max(rivals, key=statistics.median)
        each = [a / b for a, b in zip(rates[ours], best, strict=True)]
        self.keep(goal, statistics.median(rates[ours]) / statistics.median(best), each)


def say(text: str) -> None:
    """Tell whoever waits how far it is."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def versions(machine: Machine) -> dict[str, str]:
    """What was measured with what."""
    told = {name: version(name) for name in PACKAGES}
    told |= {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    told["postgresql"] = machine.postgres_version()
    return told


def main(given: Sequence[str] | None = None) -> int:
    """Run the bench; 0 when every measured floor was reached (with --quick: when it ran)."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="small numbers, one round: a smoke test"
    )
    parser.add_argument("--only", default="", help="goals, separated by commas: G1,G4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "latest.json")
    options = parser.parse_args(given)
    asked = {name.strip().lower() for name in options.only.split(",") if name.strip()}
    wanted = {
        name
        for name in GOALS
        if not asked or {name.lower(), name.partition("_")[0].lower()} & asked
    }
    if not wanted:
        parser.error(f"there is no such goal; there are {', '.join(GOALS)}")
    began = time.monotonic()
    # So that the server and all processes are stopped, however the run is ended.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    with ExitStack() as stack:
        machine = Machine(stack)
        bench = Bench(machine, wanted, quick=options.quick, rounds=options.rounds)
        bench.throughput()
        bench.waits()
        bench.claims()
        bench.seconds["whole_run"] = time.monotonic() - began
        told = {
            "goals": {value.goal: value.as_dict() for value in bench.values},
            "seconds": bench.seconds,
            "versions": versions(machine),
            "quick": options.quick,
        }
    options.out.write_text(json.dumps(told, indent=1) + "\n")
    for name, value in bench.seconds.items():
        if isinstance(value, float):
            print(f"  {name:45} {value:12,.2f}")
    print()
    for value in bench.values:
        print(value.line())
    missed = [value.goal for value in bench.values if not GOALS[value.goal].reached(value.value)]
    print(f"\n{len(bench.values) - len(missed)} floors reached, {len(missed)} missed: {missed}")
    return 0 if options.quick or not missed else 1


if __name__ == "__main__":
    sys.exit(main())
