"""A remote over real sockets for connectors of every class: keys, conditions, references, jobs, and
faults on order.

It runs in threads of the test's process; workers in other processes reach it like any remote.
`Faults` act on the
socket itself: it resets, cuts and stalls as a broken network does. See `classes.py` for the
connector that speaks it.

| request | answer |
|---|---|
| `POST /A/things` `{"reference", "version", "fields"}` | 201 and the thing (see below) |
| `PUT /A/things/ID` | 200; `If-None-Match: *` creates, `If-Match: V` demands V; else 412 |
| `DELETE /A/things/ID` | 200, 404 when it is not there |
| `GET /A/things?reference=R` | `{"items": [...], "complete": true}`; `GET /A/things/ID` one |
| `POST /A/jobs` `{"reference", ...}` | 202 `{"job"}`; `GET /A/jobs/J`; `GET /A/jobs?reference=R` |
| `GET /A/ping` | 200 |

With `Idempotency-Key` a repeat gets the first answer, marked `idempotent-replayed: true`.
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.harness.clock import Clock
from tests.harness.views import CREATE, DELETE, UPDATE, Effect, Received, Thing

BEFORE, AFTER = "before", "after"
Look = Callable[[str], list[str]]
"""Called with the digest of each write while it is handled; what is wrong with the database then
(I7).
"""


@dataclass
class Order:
    """A fault waiting for its request.

    `fault`: ``drop`` (close without an answer), ``reset`` (the same with RST), ``unread`` (reset
    before reading), ``answer`` (`status`, `headers` and `body` come instead), ``cut`` (half the
    body), ``stall`` (no answer at all; closed by `release()`), ``hold`` (the answer waits for
    `release()`), ``together`` (answered once all `times` requests are there), ``drip`` (a byte per
    `seconds`), ``late`` (close at once, carry it out after `seconds`), ``slow`` (answer after
    `seconds`), ``twice``, ``lag`` (searches show it after `seconds`), ``hide`` (a search finds
    nothing), ``incomplete`` (a search says it is not complete), ``wrong_echo``, ``no_echo``,
    ``no_key_sign``.
    `when` says whether it is carried out before the fault (``after``) or not at all (``before``).
    """

    fault: str
    method: str = "*"
    path: str = ""
    times: int = 1
    when: str = AFTER
    seconds: float = 0.0
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = ""
    reference: str = ""
    met: int = 0
    all_there: threading.Event = field(default_factory=threading.Event)


@dataclass
class _Thing:
    id: str
    reference: str
    version: int
    fields: dict[str, Any]
    visible_at: float = 0.0


@dataclass
class _Job:
    id: str
    reference: str
    version: int
    fields: dict[str, Any]
    state: str = "running"


@dataclass
class Request:
    """One request as it came in."""

    method: str
    account: str
    parts: list[str]
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def digest(self) -> str:
        """SHA-256 of the body's bytes."""
        return hashlib.sha256(self.body).hexdigest()

    @property
    def json(self) -> Any:
        """The body, or {} when it is none."""
        try:
            return json.loads(self.body or b"{}")
        except ValueError:
            return {}

    @property
    def key(self) -> str:
        """Its idempotency key, or ""."""
        return self.headers.get("idempotency-key", "")


Reply = tuple[int, dict[str, str], Any]


class FakeRemote:
    """Listens on the loopback from `start()` to `stop()`; also the `RemoteView` of itself."""

    integration = "testremote"

    def __init__(
        self, *, secret: str = "token", look: Look | None = None, clock: Clock | None = None
    ) -> None:
        self.secrets: Mapping[str, str] = {"token": secret}
        self.key_atomic = True
        """Off: two copies with one key at once are both carried out."""
        self.key_stores_errors = False
        self.ignores_keys = False
        self.log: list[Request] = []
        self.ledger: list[Effect] = []
        self.wrong: list[str] = []
        self.looked = 0
        self._look = look
        self._clock = clock or Clock()
        self._orders: list[Order] = []
        self._things: dict[tuple[str, str], _Thing] = {}
        self._jobs: dict[tuple[str, str], _Job] = {}
        self._keys: dict[tuple[str, str], Reply] = {}
        self._running: set[tuple[str, str]] = set()
        self._last = 0
        self._pending = 0
        self._lock = threading.RLock()
        self._released = threading.Event()
        self._ended = threading.Event()
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()

    # --- life ---

    def start(self) -> FakeRemote:
        """Begin to listen."""
        self._listener.listen(200)
        threading.Thread(target=self._accept, daemon=True, name="fake-remote").start()
        return self

    def stop(self) -> None:
        """Close everything; stalled requests end without an answer."""
        self._ended.set()
        self._released.set()
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        with self._lock:
            for one in list(self._open):
                _close(one, reset=True)

    # --- for tests ---

    def order(self, fault: str, method: str = "*", **more: Any) -> Order:
        """Order a fault for requests to come; returns the order, whose `met` counts."""
        made = Order(fault, method, **more)
        with self._lock:
            self._orders.append(made)
        return made

    def clear(self) -> None:
        """Forget the orders still waiting."""
        with self._lock:
            self._orders.clear()

    def release(self) -> None:
        """Let everything that stalls go on."""
        self._released.set()

    def forget_keys(self) -> None:
        """Break the promise of `key_ttl`."""
        with self._lock:
            self._keys.clear()

    def seed(
        self, account: str, fields: Mapping[str, Any], *, reference: str = "", version: int = 0
    ) -> str:
        """A person makes a thing by hand; its id."""
        with self._lock:
            thing = self._make(account, reference, version, dict(fields), None)
            self._note(account, CREATE, thing, None)
            return thing.id

    def person(self, account: str, remote_id: str, fields: Mapping[str, Any] | None) -> None:
        """A person changes a thing by hand, or deletes it (None)."""
        with self._lock:
            thing = self._things[account, remote_id]
            if fields is None:
                del self._things[account, remote_id]
                self._note(account, DELETE, thing, None)
            else:
                thing.fields.update(fields)
                self._note(account, UPDATE, thing, None)

    def job(self, account: str, reference: str, state: str) -> None:
        """Bring the jobs with a reference to `state`: running, finished, failed, or gone."""
        with self._lock:
            for key, job in list(self._jobs.items()):
                if key[0] == account and job.reference == reference:
                    if state == "gone":
                        del self._jobs[key]
                    else:
                        job.state = state

    # --- as the invariants see it ---

    def base_url(self, account: str) -> str:
        return f"http://127.0.0.1:{self.port}/{account}"

    def effects(self, account: str) -> list[Effect]:
        with self._lock:
            return [one for one in self.ledger if one.account == account]

    def writes(self, account: str) -> list[Received]:
        with self._lock:
            return [
                Received(account, one.digest, one.at, one.key)
                for one in self.log
                if one.account == account and one.method != "GET"
            ]

    def requests(self, account: str) -> list[float]:
        with self._lock:
            return [one.at for one in self.log if one.account == account]

    def things(self, account: str) -> dict[str, Thing]:
        with self._lock:
            return {
                thing.id: Thing(thing.id, thing.reference, dict(thing.fields))
                for (owner, _), thing in self._things.items()
                if owner == account
            }

    def differences(
        self, wanted: Mapping[str, Any], there: Mapping[str, Any], seen: Mapping[str, Any]
    ) -> list[str]:
        return [
            f"{name}: {value!r} wanted, {there.get(name)!r} there"
            for name, value in wanted.items()
            if there.get(name) != value
        ]

    def complaints(self) -> list[str]:
        with self._lock:
            found = list(self.wrong)
            if (
                self._look is not None
                and not self.looked
                and any(one.method != "GET" for one in self.log)
            ):
                found.append("I7: nothing was checked, although writes arrived")
            return found

    def busy(self) -> bool:
        return self._pending > 0

    # --- serving ---

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            unread = self._pick("unread", None)
            if unread is not None:
                _close(client, reset=True)
                return
            client.settimeout(30)
            buffer = b""
            while not self._ended.is_set():
                request, buffer = _read(client, buffer, self._clock)
                if request is None or not self._handle(client, request):
                    return
        except OSError:
            pass
        finally:
            _close(client)
            with self._lock:
                self._open.discard(client)

    def _pick(self, only: str, request: Request | None) -> Order | None:
        with self._lock:
            for order in self._orders:
                if (order.fault == "unread") != (only == "unread"):
                    continue
                if request is not None and not _meets(order, request):
                    continue
                order.met += 1
                order.times -= 1
                if order.times == 0:
                    self._orders.remove(order)
                    order.all_there.set()
                return order
        return None

    def _handle(self, client: socket.socket, request: Request) -> bool:
        """Play one request; False when the connection is over."""
        with self._lock:
            self.log.append(request)
        if request.method != "GET" and self._look is not None:
            try:
                wrong = self._look(request.digest)
            except Exception as error:  # noqa: BLE001 - a blind witness must be visible, not fatal
                wrong = [f"the witness was blind: {type(error).__name__}: {error}"]
            with self._lock:
                self.looked += 1
                self.wrong += wrong
        order = self._pick("", request)
        fault = order.fault if order else ""
        if order is not None:
            if fault == "late":
                with self._lock:
                    self._pending += 1
                _close(client)
                with self._clock.after(order.seconds):
                    self._carry_out(request, None)
                    with self._lock:
                        self._pending -= 1
                return False
            if fault == "stall" and order.when == BEFORE:
                self._released.wait(60)
            if order.when == BEFORE and fault in ("drop", "reset", "answer", "cut", "stall"):
                return self._spoil(client, order, (order.status, {}, order.body))
        reply = self._carry_out(request, order)
        if fault == "twice":
            self._carry_out(request, order)
        if order is None or fault in ("lag", "twice", "hide", "incomplete"):
            return _answer(client, reply)
        return self._spoil(client, order, reply)

    def _spoil(self, client: socket.socket, order: Order, reply: Reply) -> bool:
        status, headers, body = reply
        match order.fault:
            case "drop":
                time.sleep(order.seconds)
                _close(client)
                return False
            case "reset":
                _close(client, reset=True)
                return False
            case "stall":
                self._released.wait(60)
                _close(client)
                return False
            case "hold":
                self._released.wait(60)
                return _answer(client, reply)
            case "together":
                order.all_there.wait(60)
                return _answer(client, reply)
            case "answer":
                return _answer(client, (order.status, dict(order.headers), order.body))
            case "cut":
                raw = _raw(reply)
                head = raw.index(b"\r\n\r\n") + 4
                client.sendall(raw[: head + (len(raw) - head) // 2])
                _close(client)
                return False
            case "drip":
                for byte in _raw(reply):
                    client.sendall(bytes([byte]))
                    if self._ended.wait(order.seconds):
                        return False
                return True
            case "slow":
                self._ended.wait(order.seconds)
                return _answer(client, reply)
            case "wrong_echo":
                return _answer(client, (status, headers, {**body, "reference": "somebody-else"}))
            case "no_echo":
                left = {name: value for name, value in body.items() if name != "reference"}
                return _answer(client, (status, headers, left))
            case "no_key_sign":
                kept = {k: v for k, v in headers.items() if not k.startswith("idempoten")}
                return _answer(client, (status, kept, body))
        raise ValueError(f"no such fault: {order.fault}")

    # --- what it keeps ---

    def _carry_out(self, request: Request, order: Order | None) -> Reply:
        key = request.key if request.method != "GET" and not self.ignores_keys else ""
        held = (request.account, key)
        if not key:
            with self._lock:
                return self._run(request, order)
        with self._lock:
            if held in self._keys:
                status, headers, body = self._keys[held]
                return status, {**headers, "idempotent-replayed": "true"}, body
            if held in self._running and self.key_atomic:
                return 409, {}, {"error": "KEY_IN_PROGRESS"}
            self._running.add(held)
        with self._lock:
            status, headers, body = self._run(request, order)
            headers = {**headers, "idempotency-key": key}
            self._running.discard(held)
            if status < 400 or self.key_stores_errors:
                self._keys[held] = (status, headers, body)
            return status, headers, body

    def _run(self, request: Request, order: Order | None) -> Reply:
        match request.method, request.parts:
            case "POST", [
                "echo"
            ]:  # at /health/echo: the hub's own web process, as the probe sees it
                return 200, {}, {"echo": request.json.get("nonce"), "key": request.key}
            case "GET", ["ping"] | ["live"]:
                return 200, {}, {"ok": True}
            case "GET", ["things"]:
                return 200, {}, self._search(request, order)
            case "GET", ["jobs"]:
                found = [
                    _job(job)
                    for (account, _), job in self._jobs.items()
                    if account == request.account
                    and job.reference == request.query.get("reference")
                ]
                return 200, {}, {"items": found, "complete": True}
            case "GET", ["jobs", name]:
                job = self._jobs.get((request.account, name))
                return (200, {}, _job(job)) if job else (404, {}, {"error": "NOT_FOUND"})
            case "POST", ["things"]:
                return self._post(request, order)
            case "POST", ["jobs"]:
                return self._start_job(request)
            case _, ["things", name]:
                return self._one(request, name, order)
        return 404, {}, {"error": "NO_SUCH_ADDRESS"}

    def _search(self, request: Request, order: Order | None) -> dict[str, Any]:
        if order is not None and order.fault == "hide":
            return {"items": [], "complete": True}
        now = self._clock.monotonic()
        found = [
            _shown(thing)
            for (account, _), thing in self._things.items()
            if account == request.account
            and thing.reference == request.query.get("reference")
            and thing.visible_at <= now
        ]
        return {"items": found, "complete": order is None or order.fault != "incomplete"}

    def _post(self, request: Request, order: Order | None) -> Reply:
        given = request.json
        thing = self._make(
            request.account,
            given.get("reference", ""),
            int(given.get("version", 0)),
            dict(given.get("fields", {})),
            order,
        )
        self._note(request.account, CREATE, thing, request)
        return 201, {}, _shown(thing)

    def _start_job(self, request: Request) -> Reply:
        given = request.json
        self._last += 1
        job = _Job(
            f"j{self._last}",
            given.get("reference", ""),
            int(given.get("version", 0)),
            dict(given.get("fields", {})),
        )
        self._jobs[request.account, job.id] = job
        made = _Thing(job.id, job.reference, job.version, job.fields)
        self._note(request.account, CREATE, made, request)
        return 202, {}, _job(job)

    def _one(self, request: Request, name: str, order: Order | None) -> Reply:
        thing = self._things.get((request.account, name))
        given = request.json
        if request.method == "PUT" and request.headers.get("if-none-match") == "*":
            if thing is not None:
                return 412, {}, {"error": "EXISTS", **_shown(thing)}
            made = self._make(
                request.account,
                given.get("reference", ""),
                int(given.get("version", 0)),
                dict(given.get("fields", {})),
                order,
                name=name,
            )
            self._note(request.account, CREATE, made, request)
            return 201, {}, _shown(made)
        if thing is None:
            return 404, {}, {"error": "NOT_FOUND"}
        if request.method == "DELETE":
            del self._things[request.account, name]
            self._note(request.account, DELETE, thing, request)
            return 200, {}, {}
        if request.method == "PUT":
            wanted = request.headers.get("if-match", "").strip('"')
            if wanted and wanted != str(thing.version):
                return 412, {}, {"error": "VERSION", **_shown(thing)}
            fields, version = dict(given.get("fields", {})), int(given.get("version", 0))
            if {**thing.fields, **fields} != thing.fields or thing.version != version:
                # Writing what is there already is no effect.
                thing.fields.update(fields)
                thing.version = version
                self._note(request.account, UPDATE, thing, request)
        return 200, {}, _shown(thing)

    def _make(
        self,
        account: str,
        reference: str,
        version: int,
        fields: dict[str, Any],
        order: Order | None,
        *,
        name: str = "",
    ) -> _Thing:
        self._last += 1
        thing = _Thing(name or str(self._last), reference, version, fields)
        if order is not None and order.fault == "lag":
            thing.visible_at = self._clock.monotonic() + order.seconds
        self._things[account, thing.id] = thing
        return thing

    def _note(self, account: str, kind: str, thing: _Thing, request: Request | None) -> None:
        self.ledger.append(
            Effect(
                number=len(self.ledger) + 1,
                account=account,
                kind=kind,
                remote_id=thing.id,
                reference=thing.reference,
                version=thing.version,
                digest=request.digest if request else "",
                by_person=request is None,
                key=request.key if request else "",
            )
        )


def _meets(order: Order, request: Request) -> bool:
    if order.method not in ("*", request.method):
        return False
    if order.path and not "/".join(request.parts).startswith(order.path):
        return False
    if order.reference:
        return order.reference in (request.query.get("reference"), request.json.get("reference"))
    return True


def _shown(thing: _Thing) -> dict[str, Any]:
    return {
        "id": thing.id,
        "reference": thing.reference,
        "version": thing.version,
        "fields": dict(thing.fields),
    }


def _job(job: _Job) -> dict[str, Any]:
    return {
        "job": job.id,
        "reference": job.reference,
        "version": job.version,
        "state": job.state,
        "id": job.id,
    }


# --- HTTP, by hand: a library would tidy up exactly what these tests are about
# ----------------------


def _read(client: socket.socket, buffer: bytes, clock: Clock) -> tuple[Request | None, bytes]:
    while b"\r\n\r\n" not in buffer:
        part = client.recv(65536)
        if not part:
            return None, b""
        buffer += part
    head, _, rest = buffer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    length = int(headers.get("content-length", "0"))
    while len(rest) < length:
        part = client.recv(65536)
        if not part:
            return None, b""
        rest += part
    method, target, _ = first.split(" ", 2)
    split = urlsplit(target)
    account, *parts = [unquote(part) for part in split.path.split("/") if part]
    query = {name: values[0] for name, values in parse_qs(split.query).items()}
    request = Request(method, account, parts, query, headers, rest[:length], clock.time())
    return request, rest[length:]


def _raw(reply: Reply) -> bytes:
    status, headers, body = reply
    if isinstance(body, bytes):
        content = body
    else:
        content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Said"]
    given = {name.lower(): value for name, value in headers.items()}
    if status >= 200 and status not in (204, 304):
        given.setdefault("content-type", "application/json")
        given.setdefault("content-length", str(len(content)))
    lines += [f"{name}: {value}" for name, value in given.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def _answer(client: socket.socket, reply: Reply) -> bool:
    client.sendall(_raw(reply))
    return True


def _close(client: socket.socket, *, reset: bool = False) -> None:
    try:
        if reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            client.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    client.close()


def witness(database_url: str) -> Look:
    """A look into the hub's database on a connection of its own: is the marker for these bytes
    there (I7)?
    """
    from integrations.bitrix24.simulator.witness import NOT_LEFT, SQL, Database, database

    lock = threading.Lock()
    # A SQLite connection belongs to the thread that made it, and every request has a thread of its
    # own here.
    here = threading.local()

    def look(digest: str) -> list[str]:
        if not hasattr(here, "database"):
            here.database = database(database_url)
        mine: Database = here.database
        try:
            with lock:
                marked = mine.rows(SQL.MARKED, digest)
                good = any(state not in NOT_LEFT for _, state in marked)
                good = good or bool(mine.rows(SQL.EARLIER, digest))
        finally:
            mine.close()
            del here.database
        return [] if good else [f"I7: no marker for {digest[:12]} ({marked or 'nothing'})"]

    return look


_ = Iterable
