"""One run of each system: operations a second from the first call to the last stored result."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from typing import Any

from bench.machine import POSTGRESQL, Failed, Machine, Store, until

HUB, RIVALS = "bench.hubside", "bench.rivals"
OPEN = "SELECT 1 FROM hub_operation WHERE state NOT IN ('confirmed', 'discarded') LIMIT 1"


def filled(
    machine: Machine, kind: str, name: str, n: int, connections: tuple[str, ...] = ("bench",)
) -> tuple[Store, dict[str, Any]]:
    """A database with `n` submitted operations, to be copied for each run."""
    store = machine.store(kind, name)
    machine.manage(store, "migrate", "--verbosity", "0")
    told = machine.tell(
        HUB,
        "fill",
        {"n": n, "url": machine.url(0), "connections": list(connections)},
        machine.environment(store),
    )
    return store, told


def aim(store: Store, url: str, keep_alive: bool = True) -> None:
    """Point the connections at an address of the echo."""
    store.rows(
        "UPDATE hub_connection SET base_url = %s, options = %s",
        [url, "{}" if keep_alive else '{"keep_alive": false}'],
    )


class Drains:
    """Drains of the hub at work on one database, held back by the gate until `release`."""

    def __init__(
        self, machine: Machine, store: Store, count: int, senders: int, stack: ExitStack
    ) -> None:
        self._store = store
        self._set_gate("2000-01-01 00:00:00", "held back by the bench")
        environment = machine.environment(store, HUB_SENDERS=str(senders))
        self._processes = [
            stack.enter_context(
                machine.running(
                    ["manage.py", "hub_drain", "--forever", "--budget", "600"], environment
                )
            )
            for _ in range(count)
        ]
        until(lambda: self._beats() == count, "starting the drains", 60)

    def _beats(self) -> int:
        if any(process.poll() is not None for process in self._processes):
            raise Failed("a drain ended before its time")
        return int(self._store.rows("SELECT count(*) FROM hub_heartbeat")[0][0])

    def _set_gate(self, moment: str | None, reason: str) -> None:
        self._store.rows("UPDATE hub_gate SET paused_at = %s, pause_reason = %s", [moment, reason])

    def release(self) -> None:
        """Open the gate and ring."""
        self._set_gate(None, "")
        if self._store.kind == POSTGRESQL:
            self._store.rows("SELECT pg_notify('hub_due', '')")

    def check(self) -> None:
        """Raise `Failed` when one has ended."""
        self._beats()

    def stop(self) -> None:
        """Have them end politely."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            process.wait(30)


def hub(
    machine: Machine,
    source: Store,
    n: int,
    *,
    drains: int = 1,
    latency: int = 0,
    keep_alive: bool = True,
) -> float:
    """The hub on a copy of a filled database."""
    with machine.copied(source) as store, ExitStack() as stack:
        aim(store, machine.url(latency), keep_alive)
        machine.ask_echo("/reset")
        crew = Drains(machine, store, drains, 50 // drains, stack)
        crew.release()
        end = until(lambda: not store.rows(OPEN), "the hub's run", every=0.02)
        told = machine.ask_echo("/stats")
        crew.stop()
        found = store.rows("SELECT count(*) FROM hub_operation WHERE state = 'confirmed'")[0][0]
        if found != n:
            raise Failed(f"the hub confirmed {found} of {n}")
        return n / (end - first_call(told, n))


def bare_httpx(machine: Machine, n: int, pools: int, size: int) -> float:
    """httpx as it comes."""
    machine.ask_echo("/reset")
    told = machine.tell(
        RIVALS,
        "httpx",
        {"url": machine.url(0), "n": n, "pools": pools, "size": size},
        machine.environment(),
    )
    return n / (told["end"] - first_call(machine.ask_echo("/stats"), n))


def procrastinate(machine: Machine, n: int, concurrency: int) -> float:
    """Procrastinate, one worker process."""
    store = machine.store(POSTGRESQL, f"procrastinate{time.monotonic_ns()}")
    try:
        machine.ask_echo("/reset")
        told = machine.tell(
            RIVALS,
            "procrastinate",
            {"url": machine.url(0), "n": n, "concurrency": concurrency},
            machine.environment(store),
        )
        return n / (told["end"] - first_call(machine.ask_echo("/stats"), n))
    finally:
        machine.drop(store)


def raw_q2(machine: Machine, source: Store, n: int) -> float:
    """Raw Django-Q2, tuned: no results kept, lasting connections, two workers."""
    with machine.copied(source) as store:
        environment = machine.environment(store, BENCH_RAW_Q2="1")
        machine.ask_echo("/reset")
        machine.tell(RIVALS, "q2", {"url": machine.url(0), "n": n}, environment)
        with machine.running(["manage.py", "qcluster"], environment) as cluster:

            def done() -> bool:
                if cluster.poll() is not None:
                    raise Failed("the cluster ended before its time")
                return not store.rows("SELECT 1 FROM django_q_ormq LIMIT 1")

            end = until(done, "raw Django-Q2", every=0.02)
            told = machine.ask_echo("/stats")
        return n / (end - first_call(told, n))


def first_call(told: dict[str, Any], n: int) -> float:
    """The moment of the first call; raises `Failed` when calls are missing or doubled."""
    if told["duplicates"] or told["calls"] != n:
        raise Failed(f"the echo saw {told['calls']} calls, {told['duplicates']} duplicates, of {n}")
    return float(told["first"])
