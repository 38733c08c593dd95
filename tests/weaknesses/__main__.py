"""`make weaknesses`: plant each weakness and see the suite fail.

The tests that have to see the weaknesses run once without any (they must pass), then for each
weakness with it planted (they must fail, as tests fail: nothing else counts). The model of the
protocol (`tests/model`) is asked for its shortest story beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.databases import start_postgres
from tests.weaknesses import VARIABLE
from tests.weaknesses.planted import BY_ID, POSTGRESQL, WEAKNESSES, Weakness

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 240.0
"""Seconds for one run of pytest: a weakness may make a test hang, which is no proof of anything."""

Phases = dict[str, dict[str, str]]
"""By test: the outcome of each of its phases, and under "said" what the failure said."""


class DidNotRun(RuntimeError):
    """pytest came to no verdict; the text says why."""


@dataclass
class Seen:
    """What the tests of one weakness said."""

    weakness: Weakness
    seconds: float = 0.0
    caught: dict[str, str] = field(default_factory=dict)
    """The tests that failed, each with the database."""
    trouble: list[str] = field(default_factory=list)
    model: str = ""

    @property
    def survived(self) -> bool:
        """Whether anything that had to fail did not."""
        return bool(self.trouble)


class Bench:
    """Runs pytest on a database of its own each time."""

    def __init__(self, server: str | None) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._number = 0
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(
        self, nodes: Sequence[str], database: str, weakness: str = "", limit: float = LIMIT
    ) -> Phases:
        """Run these tests, perhaps with a weakness. Raises `DidNotRun`."""
        with self._lock:
            self._number += 1
            number = self._number
        home = Path(tempfile.mkdtemp(prefix="hub-weakness-"))
        report, said = home / "outcomes.json", home / "said"
        # Of a run of pytest around this one nothing may shine through, least of all its database.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HUB_", "PYTEST_"))
            and name not in ("DATABASE_URL", "DJANGO_SETTINGS_MODULE")
        }
        environment |= {"HUB_TEST_HOME": str(home), "HUB_TEST_WEAKNESS_REPORT": str(report)}
        if weakness:
            environment[VARIABLE] = weakness
        if database == POSTGRESQL:
            environment["HUB_TEST_DATABASE_URL"] = f"{self._server}/weak{number}"
        command = [
            sys.executable, "-m", "pytest", "-q", "--no-header",
            "-p", "no:cacheprovider", "-p", "tests.weaknesses.plug", "--tb=short", *nodes,
        ]  # fmt: skip
        try:
            with said.open("wb") as output:
                process = subprocess.Popen(
                    command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                    stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
                with self._lock:
                    self._running.add(process)
                try:
                    code = process.wait(limit)
                except subprocess.TimeoutExpired:
                    raise DidNotRun(f"ended after {limit:.0f} s: a test hangs") from None
                finally:
                    _end(process)
                    with self._lock:
                        self._running.discard(process)
            if code not in (0, 1) or not report.exists():
                raise DidNotRun(_why(code, said.read_text(errors="replace")))
            found: Phases = json.loads(report.read_text())
            return found
        finally:
            shutil.rmtree(home, ignore_errors=True)

    def end(self) -> None:
        """End what still runs."""
        with self._lock:
            for process in self._running:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a run and whatever its tests started and left: they are of its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)


def _why(code: int, said: str) -> str:
    """Why a run came to nothing, from its code and its words."""
    void = [line for line in said.splitlines() if "Void: " in line]
    if void:
        return f"the weakness could not be planted: {void[-1].partition('Void: ')[2]}"
    return f"pytest ended with code {code}:\n{said[-1500:]}"


def _belongs(test: str, node: str) -> bool:
    return test == node or test.startswith((f"{node}[", f"{node}::"))


def passed(phases: dict[str, str]) -> bool:
    """Whether a test came through all its phases."""
    return all(phases.get(when) == "passed" for when in ("setup", "call", "teardown"))


def failed(phases: dict[str, str]) -> bool:
    """Whether a test said no: in its own words, or by the invariants checked after it."""
    if "tests.weaknesses.patches.Void" in phases.get("said", ""):
        return False
    return phases.get("setup") == "passed" and "failed" in (
        phases.get("call"), phases.get("teardown"),
    )  # fmt: skip


def control(bench: Bench, weaknesses: Sequence[Weakness]) -> dict[tuple[str, str], str]:
    """Run every test that is named, on each database it is needed on, without any weakness.

    By database and test: "" when it passed there, "left out" when it does not run there, or why
    it is of no use.
    """
    wanted: dict[str, list[str]] = {}
    for weakness in weaknesses:
        for database in weakness.databases:
            wanted.setdefault(database, []).extend(weakness.caught_by)
    result: dict[tuple[str, str], str] = {}

    def one(database: str) -> None:
        nodes = list(dict.fromkeys(wanted[database]))
        found = bench.run(nodes, database, limit=2 * LIMIT)
        for node in nodes:
            mine = {test: phases for test, phases in found.items() if _belongs(test, node)}
            bad = [test for test, phases in mine.items() if not passed(phases)]
            result[database, node] = (
                "left out" if not mine else f"{bad[0]} fails without it" if bad else ""
            )

    with ThreadPoolExecutor(2) as pool:
        for job in [pool.submit(one, database) for database in wanted]:
            job.result()
    return result


def try_one(bench: Bench, weakness: Weakness, sound: dict[tuple[str, str], str]) -> Seen:
    """Plant it and run its tests on each of its databases."""
    seen = Seen(weakness)
    began = time.monotonic()
    for database in weakness.databases:
        nodes = []
        for node in weakness.caught_by:
            why = sound[database, node]
            if not why:
                nodes.append(node)
            elif why != "left out":
                seen.trouble.append(f"{database}: {why}")
        try:
            found = bench.run(nodes, database, weakness.id) if nodes else {}
        except DidNotRun as error:
            seen.trouble.append(f"{database}: {error}")
            continue
        caught = [
            node
            for node in nodes
            if any(_belongs(test, node) and failed(phases) for test, phases in found.items())
        ]
        for node in caught:
            seen.caught[node] = (
                f"{seen.caught[node]}, {database}" if node in seen.caught else database
            )
        if not caught:
            seen.trouble.append(f"{database}: no test saw it")
            seen.trouble += [
                f"    {test}: {phases.get('said', 'passed')[:300]}"
                for test, phases in found.items()
            ]
    missed = [node for node in weakness.caught_by if node not in seen.caught]
    seen.trouble += [f"not seen by {node}" for node in missed if seen.caught]
    seen.seconds = time.monotonic() - began
    return seen


@contextlib.contextmanager
def _given_up(pool: ThreadPoolExecutor, bench: Bench) -> Iterator[None]:
    """Whoever interrupts need not wait for what is still to run."""
    try:
        yield
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        bench.end()
        raise


def model_says(weakness_id: str) -> str:
    """What breaks in the model's shortest story of it; "-" when it does not live there."""
    from tests.model import weaknesses as model

    if weakness_id not in model.WEAKNESSES:
        return "-"
    found = model.finds(weakness_id)
    return (
        "NOT FOUND"
        if found is None
        else f"{found.broken.split(':')[0]} in {len(found.moves)} moves"
    )


def table(found: Sequence[Seen]) -> str:
    """Everything that was seen, one weakness after the other."""
    lines = []
    for seen in found:
        verdict = "SURVIVED" if seen.survived else "caught"
        lines.append(
            f"{seen.weakness.id:<4} {verdict:<9}{seen.seconds:>6.1f} s  model: {seen.model:<16} "
            f"{seen.weakness.wrong}"
        )
        for node, databases in seen.caught.items():
            lines.append(f"       by {node}  ({databases})")
        lines += [f"       SURVIVED: {text}" for text in seen.trouble]
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """Try the wanted weaknesses; 0 when none survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.weaknesses", description=__doc__)
    parser.add_argument("ids", nargs="*", metavar="ID", help="such as W5; all when none is named")
    parser.add_argument("-n", dest="side_by_side", type=int, default=2)
    options = parser.parse_args(given)
    unknown = [one for one in options.ids if one not in BY_ID]
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(BY_ID)}")
    wanted = [BY_ID[one] for one in options.ids] or list(WEAKNESSES)
    began = time.monotonic()
    with ExitStack() as stack:
        server = None
        if any(POSTGRESQL in one.databases for one in wanted):
            url = os.environ.get("HUB_TEST_DATABASE_URL") or stack.enter_context(start_postgres())
            server = urlsplit(url)._replace(path="", query="").geturl()
        bench = Bench(server)
        stack.callback(bench.end)
        print(f"{len(wanted)} weaknesses; first their tests without any ...", flush=True)
        sound = control(bench, wanted)
        useless = [
            f"  {db}: {why}" for (db, _), why in sound.items() if why not in ("", "left out")
        ]
        print("\n".join([f"sound after {time.monotonic() - began:.0f} s", *useless]), flush=True)
        found: dict[str, Seen] = {}
        with ThreadPoolExecutor(options.side_by_side) as pool, _given_up(pool, bench):
            jobs = [pool.submit(try_one, bench, one, sound) for one in wanted]
            for number, job in enumerate(as_completed(jobs), 1):
                seen = job.result()
                found[seen.weakness.id] = seen
                how = "SURVIVED" if seen.survived else "caught"
                print(
                    f"[{number}/{len(jobs)}] {seen.weakness.id} {how} ({seen.seconds:.1f} s)",
                    flush=True,
                )
    for seen in found.values():
        seen.model = model_says(seen.weakness.id)
    ordered = [found[one.id] for one in wanted]
    print(f"\n{table(ordered)}\n")
    left = [one.weakness.id for one in ordered if one.survived or one.model == "NOT FOUND"]
    print(
        f"{len(ordered) - len(left)} of {len(ordered)} caught in {time.monotonic() - began:.0f} s"
        + (f"; SURVIVED: {', '.join(left)}" if left else "")
    )
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
