"""How long single operations and web writes wait: G6, G7, G10 to G12."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from bench import runs
from bench.machine import SQLITE, Failed, Machine, Store

BACKLOG = """
SELECT 1 FROM hub_operation WHERE state = 'pending' AND source_id LIKE 'copy-%' LIMIT 1
"""


def percentile(values: list[float], share: float) -> float:
    """The value that `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def paced(machine: Machine, source: Store, n: int) -> list[float]:
    """Milliseconds from commit to confirmed less the remote's own, at 20 operations a second."""
    latency = 20
    with machine.copied(source) as store, ExitStack() as stack:
        runs.aim(store, machine.url(latency))
        machine.ask_echo("/reset")
        crew = runs.Drains(machine, store, 1, 50, stack)
        crew.release()
        told = machine.tell(
            runs.HUB,
            "paced",
            {"n": n, "every": 0.05, "connection": "bench"},
            machine.environment(store),
        )
        crew.stop()
        runs.first_call(machine.ask_echo("/stats"), n)
    return [took - latency for took in told["ms"]]


def behind(machine: Machine, source: Store, n: int) -> list[float]:
    """Milliseconds of a quiet connection's single operations while another's backlog is carried."""
    with machine.copied(source) as store, ExitStack() as stack:
        runs.aim(store, machine.url(0))
        crew = runs.Drains(machine, store, 1, 50, stack)
        with machine.start(
            runs.HUB,
            "paced",
            {"n": n, "every": 0.1, "connection": "quiet"},
            machine.environment(store),
        ) as process:
            crew.release()
            told = machine.result(process, "paced")
            if not store.rows(runs.OPEN):
                raise Failed("the backlog ended before the quiet connection's operations")
        crew.stop()
    return list(told["ms"])


@dataclass(frozen=True)
class Web:
    """What web writers met beside a busy drain."""

    ms: list[float]
    locked: int
    settled_per_second: float


def web_writes(machine: Machine, source: Store, seconds: float) -> Web:
    """Two web writers beside one busy drain, on SQLite."""
    confirmed = "SELECT count(*) FROM hub_operation WHERE state = 'confirmed'"
    with machine.copied(source) as store, ExitStack() as stack:
        assert store.kind == SQLITE
        runs.aim(store, machine.url(0))
        crew = runs.Drains(machine, store, 1, 50, stack)
        crew.release()
        writers = [
            stack.enter_context(
                machine.start(
                    runs.HUB,
                    "web",
                    {"seconds": seconds, "name": f"web{number}", "connection": "quiet"},
                    machine.environment(store),
                )
            )
            for number in (1, 2)
        ]
        told = [machine.result(writer, "web", seconds + 60) for writer in writers]
        crew.check()
        if not store.rows(BACKLOG):
            raise Failed("the drain had nothing left to do before the web writers ended")
        done = store.rows(confirmed)[0][0]
        crew.stop()
    return Web(
        [one for each in told for one in each["ms"]],
        sum(each["locked"] for each in told),
        done / seconds,
    )
