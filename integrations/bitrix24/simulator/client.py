"""How tests start the stand-in, order faults and read its ledger; standard library only."""

from __future__ import annotations

import json
import os
import select
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parents[3]
START_SECONDS = 20.0
STOP_SECONDS = 5.0
ANY_SECRET = "s3cret"  # noqa: S105 - a stand-in without --portal takes any
Json = dict[str, Any]


class SimulatorError(RuntimeError):
    """The stand-in did not start, or refused a control request; the text says why."""


class Simulator:
    """The stand-in as a child process, or one that runs already (:meth:`at`).

    A context manager: entering starts it, leaving stops it. All arguments mirror the command line.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        rate: float | None = None,
        burst: float | None = None,
        tls: bool = False,
        witness: str | None = None,
        state: Path | None = None,
        portals: Mapping[str, str] | None = None,
    ) -> None:
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.tls = tls
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._context: ssl.SSLContext | None = None
        self._options: list[str] = ["--port", str(port)]
        for name, value in (
            ("rate", rate),
            ("burst", burst),
            ("witness", witness),
            ("state", state),
        ):
            if value is not None:
                self._options += [f"--{name}", str(value)]
        for portal, secret in (portals or {}).items():
            self._options += ["--portal", f"{portal}:{secret}"]

    @classmethod
    def at(cls, url: str) -> Self:
        """A stand-in that somebody else started, for example the demo's."""
        simulator = cls()
        simulator.url = url.rstrip("/")
        return simulator

    def start(self) -> Self:
        """Start the process and wait until it listens; raises SimulatorError with its own words."""
        options = list(self._options)
        if self.tls:
            self._folder = tempfile.TemporaryDirectory(prefix="bitrix24-stand-in-")
            options += ["--tls", "--tls-dir", self._folder.name]
        # Its errors go to a file: a pipe nobody reads would one day block it.
        errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(  # noqa: S603 - our own module
            [
                sys.executable,
                "-m",
                "integrations.bitrix24.simulator",
                *options,
                "--until-stdin-closes",
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        line = self._first_line()
        if not line.startswith("listening on "):
            self.stop()
            errors.seek(0)
            said = errors.read().decode("utf-8", "replace").strip()
            raise SimulatorError(
                said or f"the stand-in did not listen within {START_SECONDS:.0f} s"
            )
        self.url = line.removeprefix("listening on ").strip()
        if self.tls:
            self._context = ssl.create_default_context(cafile=str(self.certificate))
        return self

    def _first_line(self) -> str:
        process = self.process
        if process is None or process.stdout is None:
            return ""
        number = process.stdout.fileno()
        deadline = time.monotonic() + START_SECONDS
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([number], [], [], left)[0]:
                break
            part = os.read(number, 4096)
            if not part:
                break
            line += part
        return line.decode()

    def stop(self) -> None:
        """Stop it politely; kill it if it does not listen to reason."""
        process, self.process = self.process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    pipe.close()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> Self:
        return self if self.url else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # addresses

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.url.rpartition(":")[2])

    @property
    def certificate(self) -> Path:
        """In TLS mode, the certificate a client has to trust."""
        if self._folder is None:
            raise SimulatorError("only a stand-in started with tls=True has a certificate")
        return Path(self._folder.name) / "cert.pem"

    def base_url(self, portal: str = "default") -> str:
        """The portal's address, as the portal's own host would be: ``http://…:PORT/acme``."""
        return self.url if portal == "default" else f"{self.url}/{portal}"

    def webhook(self, portal: str = "default", secret: str = ANY_SECRET, user: int = 1) -> str:
        """An incoming webhook's address; a method name is appended: ``…/rest/1/s3cret/``."""
        return f"{self.base_url(portal)}/rest/{user}/{secret}/"

    # what happened

    def ledger(self, since: int = 0, **equal: str) -> list[Json]:
        """Effects, oldest first, after the id ``since``; ``portal="acme"`` and so on filter."""
        found: list[Json] = self._get("ledger", since=since, **equal)["effects"]
        return found

    def requests(self, since: int = 0, **equal: str) -> list[Json]:
        """Requests received, oldest first, after the number ``since``."""
        found: list[Json] = self._get("requests", since=since, **equal)["requests"]
        return found

    def items(self, portal: str = "default", entity: str = "contact") -> list[Json]:
        """The records that exist now."""
        found: list[Json] = self._get("items", portal=portal, entity=entity)["items"]
        return found

    def violations(self) -> Json:
        """The witness: ``violations``, ``checked`` (counts by invariant), ``errors``."""
        return self._get("violations")

    def status(self) -> Json:
        """Counts, among them ``pending_commits``: late commits still to come."""
        return self._get("status")

    # what shall happen

    def fault(self, fault: str, method: str = "*", times: int = 1, **more: Any) -> Json:
        """Order a fault; ``more``: reference, portal, seconds, probability, seed, status."""
        return self._send(
            "POST", "faults", {"fault": fault, "method": method, "times": times, **more}
        )

    def faults(self) -> Json:
        """``faults`` with a text for each name, and the pending ``orders``."""
        return self._get("faults")

    def clear_faults(self) -> None:
        """Forget pending orders."""
        self._send("DELETE", "faults", None)

    def limits(self, portal: str = "*", **given: Any) -> Json:
        """Set ``rate`` and ``burst`` (rate=None switches off), or ``self_hosted``."""
        return self._send("POST", "limits", {"portal": portal, **given})

    def reset(self) -> None:
        """Forget everything but which ids were given: records, ledger, requests, faults, limits,
        violations."""
        self._send("POST", "reset", {})

    def seed(self, fields: Json, portal: str = "default", entity: str = "contact") -> Json:
        """A person creates a record by hand; returns it."""
        return self._send("POST", "items", {"portal": portal, "entity": entity, "fields": fields})

    def person(
        self,
        action: str,
        item_id: int | str,
        fields: Json | None = None,
        portal: str = "default",
        entity: str = "contact",
    ) -> Json:
        """A person updates or deletes a record by hand; returns what it is, or was."""
        given = {"action": action, "portal": portal, "entity": entity, "id": item_id}
        return self._send("POST", "people", given | {"fields": fields or {}})

    def plant(self, item_id: int | str, fields: Json, portal: str = "default") -> Json:
        """Put values into a contact that the hub does not own."""
        return self.person("update", item_id, fields, portal)

    def call(self, method: str, params: Json | None = None, portal: str = "default") -> Json:
        """One REST call through a webhook; error answers come back as their body."""
        status, body = self._http("POST", self.webhook(portal) + method, params or {})
        return {"status": status, **body}

    # transport

    def _get(self, name: str, **asked: Any) -> Json:
        return self._checked("GET", f"{self.url}/_sim/{name}?{urlencode(asked)}", None)

    def _send(self, verb: str, name: str, given: Json | None) -> Json:
        return self._checked(verb, f"{self.url}/_sim/{name}", given)

    def _checked(self, verb: str, url: str, given: Json | None) -> Json:
        status, body = self._http(verb, url, given)
        if status >= 400:
            raise SimulatorError(f"{verb} {url}: {body.get('error')}")
        return body

    def _http(self, verb: str, url: str, given: Json | None) -> tuple[int, Json]:
        body = None if given is None else json.dumps(given).encode()
        request = Request(  # noqa: S310 - our own address
            url, data=body, method=verb, headers={"Content-Type": "application/json"}
        )
        try:
            with urlopen(request, timeout=30, context=self._context) as answer:  # noqa: S310
                return answer.status, json.load(answer)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)
