"""A remote with a memory, as an httpx transport: it saves and drops the answer, refuses, stalls,
lags, doubles.

It keeps things: `POST /things` with `{"reference", "fields"}` makes one, `GET /things?reference=…`
searches, and `GET`, `PUT` and `DELETE /things/ID` speak of one. An `Idempotency-Key` is honoured
unless `ignores_keys`. Nothing here waits on a clock of its own: lag is counted in searches, a stall
ends with `release()`.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import httpx


class Fault(StrEnum):
    """What goes wrong with one request."""

    DROP_AFTER = "drop_after"
    """The request is carried out and the answer is lost."""
    DROP_BEFORE = "drop_before"
    """The request arrives, is not carried out, and is not answered."""
    REFUSE = "refuse"
    """The connection is refused: nothing left."""
    ANSWER = "answer"
    """`status` and `body` come instead; nothing is carried out."""
    ANSWER_AFTER = "answer_after"
    """`status` and `body` come although it was carried out."""
    STALL = "stall"
    """Nothing happens until `release()`; then it is carried out and answered."""
    LAG = "lag"
    """What this request makes is left out of the next `searches` searches."""
    TWICE = "twice"
    """It is carried out twice, as when a proxy replays it; one answer comes."""
    CUT = "cut"
    """Carried out; the answer stops half-way."""


@dataclass(frozen=True)
class Order:
    """A fault and its numbers."""

    fault: Fault
    status: int = 500
    body: Any = ""
    searches: int = 1


@dataclass
class Effect:
    """One change that really happened there."""

    method: str
    id: str
    reference: str
    fields: Mapping[str, Any]
    key: str = ""


@dataclass
class _Thing:
    id: str
    reference: str
    fields: dict[str, Any]
    hidden_for: int = 0


@dataclass
class FakeRemote(httpx.AsyncBaseTransport):
    """Holds things, an effect ledger and the requests it saw; `plan` sets faults for the writes to
    come.
    """

    ignores_keys: bool = False
    page_size: int = 50
    effects: list[Effect] = field(default_factory=list)
    requests: list[httpx.Request] = field(default_factory=list)
    _things: dict[str, _Thing] = field(default_factory=dict)
    _keys: dict[str, tuple[int, Any]] = field(default_factory=dict)
    _planned: deque[Order] = field(default_factory=deque)
    _planned_reads: deque[Order] = field(default_factory=deque)
    _released: asyncio.Event = field(default_factory=asyncio.Event)
    _last: int = 0

    def plan(self, *orders: Order | Fault, reads: bool = False) -> None:
        """Faults for the next writes (or reads), one each, in this order."""
        queue = self._planned_reads if reads else self._planned
        queue.extend(order if isinstance(order, Order) else Order(order) for order in orders)

    def release(self) -> None:
        """Let everything that stalls go on."""
        self._released.set()

    @property
    def things(self) -> dict[str, Mapping[str, Any]]:
        """What is there now, by id."""
        return {thing.id: thing.fields for thing in self._things.values()}

    def with_reference(self, reference: str) -> list[str]:
        """Ids of the things that carry a reference."""
        return [thing.id for thing in self._things.values() if thing.reference == reference]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Play the remote for one request."""
        writes = request.method != "GET"
        queue = self._planned if writes else self._planned_reads
        order = queue.popleft() if queue else None
        fault = order.fault if order else None
        if fault is Fault.REFUSE:
            raise httpx.ConnectError("connection refused", request=request)
        await request.aread()
        self.requests.append(request)
        if fault is Fault.DROP_BEFORE:
            raise httpx.RemoteProtocolError("closed without an answer", request=request)
        if order and fault is Fault.ANSWER:
            return _response(order.status, order.body, request)
        if fault is Fault.STALL:
            await self._released.wait()
        status, body = self._carry_out(request, order)
        if fault is Fault.TWICE:
            self._carry_out(request, order)
        if fault is Fault.DROP_AFTER:
            raise httpx.ReadError("reset before the answer", request=request)
        if fault is Fault.CUT:
            return httpx.Response(status, stream=_Cut(json.dumps(body).encode()), request=request)
        if order and fault is Fault.ANSWER_AFTER:
            return _response(order.status, order.body, request)
        return _response(status, body, request)

    def _carry_out(self, request: httpx.Request, order: Order | None) -> tuple[int, Any]:
        key = request.headers.get("idempotency-key", "")
        if key and not self.ignores_keys and key in self._keys:
            return self._keys[key]
        status, body = self._run(request, order, key)
        if key and request.method != "GET" and status < 400:
            self._keys[key] = (status, body)
        return status, body

    def _run(self, request: httpx.Request, order: Order | None, key: str) -> tuple[int, Any]:
        parts = [part for part in request.url.path.split("/") if part]
        if request.method == "GET" and len(parts) == 1:
            return 200, self._search(request.url.params)
        given = json.loads(request.content or b"{}")
        if request.method == "POST" and len(parts) == 1:
            self._last += 1
            thing = _Thing(str(self._last), given.get("reference", ""), given.get("fields", {}))
            if order and order.fault is Fault.LAG:
                thing.hidden_for = order.searches
            self._things[thing.id] = thing
            self._note("POST", thing, key)
            return 201, _shown(thing)
        found = self._things.get(parts[-1]) if len(parts) == 2 else None
        if found is None:
            return 404, {"error": "NOT_FOUND"}
        if request.method == "PUT":
            # Writing what is there already is no effect.
            if {**found.fields, **given.get("fields", {})} != found.fields:
                found.fields.update(given.get("fields", {}))
                self._note("PUT", found, key)
        elif request.method == "DELETE":
            del self._things[found.id]
            self._note("DELETE", found, key)
            return 200, {}
        return 200, _shown(found)

    def _search(self, params: httpx.QueryParams) -> dict[str, Any]:
        after = int(params.get("after") or 0)
        visible: list[_Thing] = []
        for thing in self._things.values():
            if thing.hidden_for > 0:
                thing.hidden_for -= 1
            elif thing.reference == params.get("reference") and int(thing.id) > after:
                visible.append(thing)
        page = visible[: self.page_size]
        more = page[-1].id if len(visible) > len(page) else None
        return {"items": [_shown(thing) for thing in page], "next": more}

    def _note(self, method: str, thing: _Thing, key: str) -> None:
        self.effects.append(Effect(method, thing.id, thing.reference, dict(thing.fields), key))


class _Cut(httpx.AsyncByteStream):
    """Half a body, and then a broken connection."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> Any:
        yield self._body[: len(self._body) // 2]
        raise httpx.RemoteProtocolError("closed in the middle of the body")


def _shown(thing: _Thing) -> dict[str, Any]:
    return {"id": thing.id, "reference": thing.reference, "fields": dict(thing.fields)}


def _response(status: int, body: Any, request: httpx.Request) -> httpx.Response:
    if isinstance(body, str | bytes):
        return httpx.Response(status, content=body, request=request)
    return httpx.Response(status, json=body, request=request)


def effects_by_reference(effects: Iterable[Effect]) -> dict[str, list[Effect]]:
    """The effects of each reference, in their order: two creates under one are a duplicate."""
    grouped: dict[str, list[Effect]] = {}
    for effect in effects:
        grouped.setdefault(effect.reference, []).append(effect)
    return grouped
