"""What the bench runs on: copies of a filled database, the echo, processes that tell one line."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from cryptography.fernet import Fernet

from tests.databases import start_postgres

ROOT = Path(__file__).resolve().parent.parent
POSTGRESQL, SQLITE = "postgresql", "sqlite"
SERVER = {"shared_buffers": "512MB", "max_wal_size": "2GB"}


class Failed(RuntimeError):
    """A part of the bench did not do what it is measured for; the text says what."""


class Store:
    """One database: its URL, and a connection of the bench's own to look into it."""

    def __init__(self, kind: str, url: str, name: str) -> None:
        self.kind, self.url, self.name = kind, url, name
        self._connection: Any = None

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement, committed at once; `%s` marks a parameter on both databases."""
        if self._connection is None:
            self._connection = (
                psycopg.connect(self.url, autocommit=True)
                if self.kind == POSTGRESQL
                else sqlite3.connect(self.name, timeout=20, isolation_level=None)
            )
        if self.kind == SQLITE:
            return list(self._connection.execute(sql.replace("%s", "?"), tuple(parameters)))
        cursor = self._connection.execute(sql, tuple(parameters))
        return list(cursor.fetchall()) if cursor.description else []

    def close(self) -> None:
        """Let go of it, so that it can be copied."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Machine:
    """One server, one folder, one echo; ends every process it has started."""

    def __init__(self, stack: ExitStack, *, postgres: bool = True) -> None:
        self._stack = stack
        self.home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hub-bench-")))
        self._server = stack.enter_context(start_postgres(SERVER)) if postgres else ""
        self._stores: list[Store] = []
        stack.callback(self._close_stores)
        self._copies = 0
        # What is set for a hub of this machine must not change what is measured.
        ours = {name for name in os.environ if name.startswith("HUB_")} | {"DATABASE_URL"}
        self._environment = {
            **{name: value for name, value in os.environ.items() if name not in ours},
            "DJANGO_SETTINGS_MODULE": "bench.settings",
            "HUB_HOME": str(self.home),
            "HUB_LOCAL": "1",
            "HUB_SECRET_KEY": "a-key-of-the-bench-" + "0123456789" * 4,
            "HUB_CREDENTIAL_KEYS": Fernet.generate_key().decode(),
            "HUB_LOG_LEVEL": "WARNING",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        self.echo = stack.enter_context(self._echo())

    # --- databases ---

    def store(self, kind: str, name: str) -> Store:
        """A new, empty database."""
        if kind == SQLITE:
            path = self.home / f"{name}.sqlite3"
            made = Store(kind, f"sqlite:///{path}", str(path))
        else:
            self._administer(f'CREATE DATABASE "{name}"')
            made = Store(kind, f"{self._server.rpartition('/')[0]}/{name}", name)
        self._stores.append(made)
        return made

    def copy(self, source: Store) -> Store:
        """A copy, so that every run starts from the same state; remove it with `drop`."""
        self._copies += 1
        name = f"copy{self._copies}"
        source.close()
        if source.kind == SQLITE:
            path = self.home / f"{name}.sqlite3"
            shutil.copyfile(source.name, path)
            made = Store(SQLITE, f"sqlite:///{path}", str(path))
        else:
            self._administer(f'CREATE DATABASE "{name}" TEMPLATE "{source.name}"')
            made = Store(POSTGRESQL, f"{self._server.rpartition('/')[0]}/{name}", name)
        self._stores.append(made)
        return made

    def _close_stores(self) -> None:
        for store in self._stores:
            store.close()

    def drop(self, store: Store) -> None:
        """Remove a database."""
        store.close()
        self._stores.remove(store)
        if store.kind == SQLITE:
            for ending in ("", "-wal", "-shm"):
                Path(store.name + ending).unlink(missing_ok=True)
        else:
            self._administer(f'DROP DATABASE "{store.name}" WITH (FORCE)')

    @contextmanager
    def copied(self, source: Store) -> Iterator[Store]:
        """A copy for the length of a block."""
        made = self.copy(source)
        try:
            yield made
        finally:
            self.drop(made)

    def _administer(self, statement: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(statement)

    def postgres_version(self) -> str:
        """The server's own words."""
        with psycopg.connect(self._server) as connection:
            found = connection.execute("SHOW server_version").fetchone()
        return str(found[0]) if found else ""

    # --- processes ---

    def environment(self, store: Store | None = None, **more: str) -> dict[str, str]:
        """The environment of a process, on that database."""
        told = {**self._environment, **more}
        if store is not None:
            told |= {"DATABASE_URL": store.url, "BENCH_DATABASE": store.url}
        return told

    @contextmanager
    def running(
        self, arguments: Sequence[str], environment: dict[str, str]
    ) -> Iterator[subprocess.Popen[str]]:
        """A Python process for the length of a block; asked to end, then killed."""
        log = tempfile.TemporaryFile("w+", dir=self.home)
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env=environment, cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read()[-4000:])
            raise
        finally:
            process.terminate()
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
            log.close()

    def tell(
        self,
        module: str,
        role: str,
        given: dict[str, Any],
        environment: dict[str, str],
        limit: float = 300.0,
    ) -> dict[str, Any]:
        """Run a role to its end; its line of JSON."""
        with self.start(module, role, given, environment) as process:
            return self.result(process, role, limit)

    def start(
        self, module: str, role: str, given: dict[str, Any], environment: dict[str, str]
    ) -> Any:
        """A role at work, for the length of a block; read its line with `result`."""
        return self.running(["-m", module, role, json.dumps(given)], environment)

    def result(
        self, process: subprocess.Popen[str], role: str, limit: float = 300.0
    ) -> dict[str, Any]:
        """Wait for a role's line of JSON."""
        said, _ = process.communicate(timeout=limit)
        if process.returncode != 0 or not said.strip():
            raise Failed(f"{role} ended with code {process.returncode}")
        told: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
        return told

    def manage(self, store: Store, *arguments: str) -> None:
        """Run a command of the hub to its end."""
        with self.running(["manage.py", *arguments], self.environment(store)) as process:
            process.communicate(timeout=300)
            if process.returncode != 0:
                raise Failed(f"{arguments[0]} ended with code {process.returncode}")

    # --- the echo ---

    @contextmanager
    def _echo(self) -> Iterator[int]:
        with self.running(["-m", "bench.echo"], self._environment) as process:
            assert process.stdout is not None
            yield int(process.stdout.readline())

    def url(self, latency: int) -> str:
        """The echo's address for that latency in milliseconds."""
        return f"http://127.0.0.1:{self.echo}/{latency}"

    def ask_echo(self, path: str) -> dict[str, Any]:
        """`/stats` or `/reset`."""
        link = http.client.HTTPConnection("127.0.0.1", self.echo)
        link.request("POST", path)
        told: dict[str, Any] = json.loads(link.getresponse().read())
        link.close()
        return told


def until(done: Any, what: str, limit: float = 180.0, every: float = 0.01) -> float:
    """Wait until `done()`; the moment it was. Raises `Failed` when it takes too long."""
    end = time.monotonic() + limit
    while not done():
        if time.monotonic() > end:
            raise Failed(f"{what} took more than {limit:.0f} s")
        time.sleep(every)
    return time.monotonic()
