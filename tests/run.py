"""`make test`: the whole suite, on SQLite and on a real PostgreSQL, with one summary at the end.

Tests that need no database run once. The others run on each database, both databases side by side:
first those of one process, then those that start and kill processes. Every worker of a part has a
database of its own. A test of processes, which has the machine's own clock, is run once more,
alone, when it fails in a whole run, and the summary tells how many needed that; no other is.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from tests.databases import PostgresUnavailable, start_postgres

ROOT = Path(__file__).resolve().parent.parent
SQLITE, POSTGRESQL = "sqlite", "postgresql"
_NO_TESTS = 5
_MOST_AGAIN = 5  # more failures than this are no accident
_GOAL = 600.0  # seconds for everything on two cores
_LIMIT = 1500.0  # then a hanging run is ended, so that it says so instead of being cut off


@dataclass(frozen=True)
class Part:
    """One run of pytest: its title, the tests it takes, the database it has, and its processes."""

    title: str
    database: str
    markers: str
    workers: int
    judged: bool = False
    """Whether a test that judges the run as a whole is run behind it."""


@dataclass(frozen=True)
class Result:
    """What one part said."""

    title: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    note: str = ""

    def line(self) -> str:
        return (
            f"  {self.title:<28}{self.passed:>6} passed {self.failed:>4} failed "
            f"{self.skipped:>4} skipped {self.seconds:>7.1f} s"
            + (f"   {self.note}" if self.note else "")
        )


def plan(databases: Sequence[str], workers: int) -> list[list[Part]]:
    """Return the stages of a run over `databases`; the parts of one stage run side by side."""
    stages = [[Part("without a database", databases[0], "pure", workers)]]
    # Of two workers on each database one mostly waits: for a commit, a remote, a process.
    each = min(workers, 2) if len(databases) > 1 else workers
    stages.append([Part(name, name, "not pure and not processes", each) for name in databases])
    stages.append(
        [
            Part(f"{name}, processes", name, "not pure and processes", each, judged=True)
            for name in databases
        ]
    )
    return stages


@contextmanager
def _postgres_url() -> Iterator[str]:
    given = os.environ.get("HUB_TEST_DATABASE_URL")
    if given:
        yield given
        return
    with start_postgres() as url:
        yield url


def run_stage(
    parts: Sequence[Part],
    urls: Mapping[str, str | None],
    marker: str,
    extra: Sequence[str],
    limit: float,
) -> list[Result]:
    """Run the parts of a stage side by side; what each wrote is shown in one piece at its end."""
    if len(parts) == 1:
        return [run_part(parts[0], urls[parts[0].database], marker, extra, limit)]
    print(f"\n=== {' and '.join(part.title for part in parts)}, side by side", flush=True)

    started: list[subprocess.Popen[bytes]] = []

    def one(part: Part) -> Result:
        with tempfile.TemporaryFile() as output:
            result = run_part(part, urls[part.database], marker, extra, limit, output, started)
            output.seek(0)
            told = output.read().decode(errors="replace")
        print(f"\n=== {part.title}\n{told}", end="", flush=True)
        return result

    with ThreadPoolExecutor(len(parts)) as lanes:
        try:
            return list(lanes.map(one, parts))
        except BaseException:
            for process in started:  # or leaving the lanes would wait for their ends
                process.terminate()
            raise


def run_part(
    part: Part,
    url: str | None,
    marker: str,
    extra: Sequence[str],
    limit: float,
    output: IO[bytes] | None = None,
    started: list["subprocess.Popen[bytes]"] | None = None,
) -> Result:
    """Run pytest and count; a run that ends without its count is one failure."""
    home = Path(tempfile.mkdtemp(prefix="hub-tests-"))
    run = Run(home, url, output, started if started is not None else [])
    markers = f"({part.markers}) and ({marker})" if marker else part.markers
    # It needs all the others to be over, in every worker.
    judged = part.judged and part.workers and not extra
    options = ["-n", str(part.workers), "--dist", "worksteal"] if part.workers else []
    if output is None:
        print(f"\n=== {part.title}", flush=True)
    began = time.monotonic()
    try:
        told = run.pytest(
            "-m", f"({markers}) and not afterwards" if judged else markers, *options, *extra,
            limit=limit,
        )  # fmt: skip
        again = ""
        if 0 < len(told.again) == told.failed <= _MOST_AGAIN and judged:
            # Processes have the machine's clock: one that is busy elsewhere can make a lease or a
            # deadline end too early. What fails is run once more, alone; the summary says so.
            quiet = run.pytest(*told.again, limit=limit)
            if (quiet.passed, quiet.failed) == (told.failed, 0):
                again = f"{told.failed} of them at a second try, alone"
                told = replace(told, passed=told.passed + told.failed, failed=0, note=again)
        if judged:
            left = limit - (time.monotonic() - began)
            told += run.pytest("-m", f"({markers}) and afterwards", limit=left, whole=True)
        return Result(
            part.title, told.passed, told.failed, told.skipped, time.monotonic() - began, told.note
        )
    finally:
        shutil.rmtree(home, ignore_errors=True)


@dataclass(frozen=True)
class Told:
    """What one run of pytest counted, and the names of what failed."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    note: str = ""
    again: Sequence[str] = ()

    def __add__(self, other: "Told") -> "Told":
        return Told(
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
            "; ".join(note for note in (self.note, other.note) if note),
        )


@dataclass(frozen=True)
class Run:
    """Runs pytest for a part: with its folder and its database, and where its output goes."""

    home: Path
    url: str | None
    output: IO[bytes] | None
    started: list["subprocess.Popen[bytes]"]

    def pytest(self, *arguments: str, limit: float, whole: bool = False) -> Told:
        """Run it once; an end without a count is one failure."""
        report = self.home / "report.json"
        report.unlink(missing_ok=True)
        environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
        environment |= {"HUB_TEST_HOME": str(self.home), "HUB_TEST_REPORT": str(report)}
        environment.pop("HUB_TEST_DATABASE_URL", None)
        # Some hundred processes load the same code: who compiles it keeps it for the others.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        if self.url is not None:
            environment["HUB_TEST_DATABASE_URL"] = self.url
        if whole:
            environment["HUB_TEST_WHOLE"] = "1"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        process = subprocess.Popen(
            [*command, "--continue-on-collection-errors", *arguments],
            cwd=ROOT,
            env=environment,
            stdout=self.output,
            stderr=self.output,
        )
        self.started.append(process)
        note = ""
        try:
            code = _wait(process, limit)
        except TimeoutError:
            code, note = 1, f"ended after {limit:.0f} s: a test hangs"
        if code == _NO_TESTS:
            return Told()
        try:
            counts = json.loads(report.read_text())
        except (OSError, ValueError):
            return Told(failed=1, note=note or f"pytest ended with code {code} and no count")
        # A test that was expected to fail and does not is a claim that is no longer true.
        failed = counts["failed"] + counts["error"] + counts["xpassed"]
        if code != 0 and failed == 0:
            failed, note = 1, note or f"pytest ended with code {code}"
        skipped = counts["skipped"] + counts["xfailed"]
        return Told(counts["passed"], failed, skipped, note, counts["again"])


def _wait(process: "subprocess.Popen[bytes]", limit: float) -> int:
    """Return the exit code; raise `TimeoutError` when the process had to be ended."""
    try:
        return process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # pytest then tears its fixtures down and reports
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise TimeoutError from None
    except BaseException:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
        raise


def _arguments(given: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="python -m tests.run",
        description="Everything it does not know goes to pytest, paths and options alike.",
    )
    parser.add_argument("--db", choices=[SQLITE, POSTGRESQL, "both"], default="both")
    parser.add_argument("-m", dest="marker", default="", help="only tests with this marker")
    parser.add_argument(
        "-n",
        dest="workers",
        type=int,
        help="test processes side by side (3, or 0 for chosen tests)",
    )
    parser.add_argument("--limit", type=float, default=_LIMIT, help="seconds for the whole run")
    return parser.parse_known_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Run the suite and return the exit code: 0 when tests ran and none failed."""
    options, extra = _arguments(given)
    databases = [SQLITE, POSTGRESQL] if options.db == "both" else [options.db]
    workers = options.workers if options.workers is not None else (0 if extra else 3)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped, too
    began = time.monotonic()
    results: list[Result] = []
    with ExitStack() as stack:
        urls: dict[str, str | None] = {SQLITE: None}
        if POSTGRESQL in databases:
            try:
                urls[POSTGRESQL] = stack.enter_context(_postgres_url())
            except PostgresUnavailable as error:
                print(error)
                results.append(Result(POSTGRESQL, 0, 1, 0, 0.0, "no server"))
                databases = [name for name in databases if name != POSTGRESQL]
        for parts in plan(databases, workers) if databases else []:
            left = options.limit - (time.monotonic() - began)
            if left > 0:
                results += run_stage(parts, urls, options.marker, extra, left)
            else:
                results += [
                    Result(part.title, 0, 1, 0, 0.0, "not started: no time was left")
                    for part in parts
                ]
    return summarise(results, time.monotonic() - began, whole=not extra)


def summarise(results: Sequence[Result], seconds: float, *, whole: bool) -> int:
    """Print the one summary, whose last line is the count, and return the exit code."""
    passed = sum(result.passed for result in results)
    failed = sum(result.failed for result in results)
    skipped = sum(result.skipped for result in results)
    print("\n=== summary")
    for result in results:
        print(result.line())
    print(f"  {seconds:.0f} s in all")
    if whole and seconds > _GOAL:
        print(
            f"  That is over the goal of {_GOAL:.0f} s on two cores: "
            "see the slowest with --durations=20."
        )
    if passed + failed == 0:
        print("  No test ran: the path or marker matches none.")
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
