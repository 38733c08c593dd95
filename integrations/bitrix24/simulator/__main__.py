"""``python -m integrations.bitrix24.simulator``: run the stand-in until told to stop."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import ssl
import sys
import tempfile
import time
from pathlib import Path

from .control import control, is_control
from .service import Service, Settings
from .state import StateFile
from .wire import HttpProtocol, Reply, Request
from .witness import Witness, database

SAVE_EVERY = 1.0


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, return an exit code: 0 after a polite stop, 2 when it cannot start."""
    options = _parser().parse_args(arguments)
    try:
        service = _service(options)
        state = StateFile(options.state) if options.state else None
        if state:
            state.load(service)
        return asyncio.run(_serve(service, state, options))
    except (ValueError, OSError) as error:
        print(f"The Bitrix24 stand-in cannot start: {error}", file=sys.stderr)  # noqa: T201
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bitrix24-stand-in", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8001, help="0 picks a free one")
    parser.add_argument(
        "--portal",
        action="append",
        default=[],
        metavar="NAME:SECRET",
        help="a portal and its webhook secret; without any, every secret is accepted",
    )
    parser.add_argument("--rate", type=float, help="calls per second that drain from the bucket")
    parser.add_argument("--burst", type=float, help="level at which calls are refused (50)")
    parser.add_argument("--tls", action="store_true", help="serve https with a test certificate")
    parser.add_argument("--tls-dir", type=Path, help="where cert.pem and key.pem are written")
    parser.add_argument("--witness", metavar="DATABASE_URL", help="watch the hub's database")
    parser.add_argument("--state", type=Path, metavar="FILE", help="keep records across restarts")
    parser.add_argument(
        "--ready-fd", type=int, metavar="N", help="write the address there instead of to stdout"
    )
    parser.add_argument(
        "--until-stdin-closes",
        action="store_true",
        help="stop when standard input ends, so that no orphan outlives its parent",
    )
    return parser


def _service(options: argparse.Namespace) -> Service:
    secrets: dict[str, str] = {}
    for given in options.portal:
        name, found, secret = given.partition(":")
        if not (name and found and secret):
            raise ValueError(f"--portal {given!r} must look like NAME:SECRET")
        secrets[name] = secret
    witness = Witness(database(options.witness)) if options.witness else None
    return Service(Settings(secrets, options.rate, options.burst), time.time, witness)


async def _serve(service: Service, state: StateFile | None, options: argparse.Namespace) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if options.until_stdin_closes:
        loop.add_reader(0, _drain_stdin, stop)
    tasks: set[asyncio.Task[None]] = set()

    def handle(request: Request) -> Reply | object:
        if is_control(request):
            return control(service, request)
        return service.handle(request)

    server = await loop.create_server(
        lambda: HttpProtocol(handle, tasks),  # type: ignore[arg-type]
        options.host,
        options.port,
        ssl=_tls(options),
        backlog=1024,
    )
    scheme = "https" if options.tls else "http"
    port = server.sockets[0].getsockname()[1]
    _say_ready(f"listening on {scheme}://{options.host}:{port}\n", options.ready_fd)
    pause = SAVE_EVERY
    while not stop.is_set():
        try:
            await asyncio.wait_for(stop.wait(), pause if state else None)
        except TimeoutError:
            if state:
                began = time.monotonic()
                state.save(service)
                # Writing holds up answers, so much data is written more rarely.
                pause = max(SAVE_EVERY, 20 * (time.monotonic() - began))
    server.close()
    if state:
        state.save(service)
    return 0


def _drain_stdin(stop: asyncio.Event) -> None:
    if not os.read(0, 4096):
        asyncio.get_running_loop().remove_reader(0)
        stop.set()


def _tls(options: argparse.Namespace) -> ssl.SSLContext | None:
    if not options.tls:
        return None
    from .certificate import server_context  # plain http needs no cryptography

    folder = options.tls_dir or Path(tempfile.mkdtemp(prefix="bitrix24-stand-in-"))
    return server_context(folder)


def _say_ready(line: str, number: int | None) -> None:
    if number is None:
        sys.stdout.write(line)
        sys.stdout.flush()
        return
    with os.fdopen(number, "w") as pipe:
        pipe.write(line)


if __name__ == "__main__":
    sys.exit(main())
