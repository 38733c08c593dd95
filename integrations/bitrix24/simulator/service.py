"""From a request to its answer: address, credential, limits, faults, method, log."""

from __future__ import annotations

import asyncio
import hashlib
import json
import traceback
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from .errors import RestError
from .faults import RUNS_NOTHING, Order, Orders, Picked, Role, Subject
from .fields import moment
from .ledger import Ledger
from .limits import Limits
from .params import parameters
from .portal import METHODS, NO_TWIST, Answer, Call, Portal, Twist
from .wire import LOST, Reply, Request
from .witness import Witness

GATEWAY_PAGE = (
    b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>nginx</body>\r\n</html>\r\n"
)
LOGIN_PAGE = (
    b"<!DOCTYPE html><html><head><title>Authorization</title></head><body><form/></body></html>"
)
_REFUSALS = {
    "coded_5xx_before_commit": (500, "INTERNAL_SERVER_ERROR", "Internal server error"),
    "coded_5xx_after_commit": (500, "INTERNAL_SERVER_ERROR", "Internal server error"),
    "throttle": (503, "QUERY_LIMIT_EXCEEDED", "Too many requests"),
    "operation_time_limit": (
        429,
        "OPERATION_TIME_LIMIT",
        "Method is blocked due to operation time limit.",
    ),
    "overload_limit": (503, "OVERLOAD_LIMIT", "REST API is blocked due to overload."),
    "access_denied": (400, "ACCESS_DENIED", "Access denied."),
    "invalid_credentials": (401, "INVALID_CREDENTIALS", "Invalid request credentials"),
    "expired_token": (401, "expired_token", "The access token provided has expired."),
    "portal_deleted": (500, "PORTAL_DELETED", "Portal was deleted"),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the process was started with. ``secrets`` empty: every secret is accepted."""

    secrets: Mapping[str, str]
    rate: float | None = None
    burst: float | None = None


class Service:
    """All portals of one process. ``clock`` gives seconds since the epoch."""

    def __init__(
        self, settings: Settings, clock: Callable[[], float], witness: Witness | None = None
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.witness = witness
        self.orders = Orders()
        self.limits = Limits(settings.rate, settings.burst)
        self.ledger = Ledger()
        self.portals: dict[str, Portal] = {}
        self.self_hosted: set[str] = set()
        self.pending_commits = 0
        self.generation = 0
        self._second = (0, "")

    def portal(self, name: str) -> Portal:
        """The portal of that name, made when first asked for."""
        if name not in self.portals:
            self.portals[name] = Portal(name, self.ledger, self.clock)
        return self.portals[name]

    def reset(self) -> None:
        """Forget data, ledger, faults and limits; late commits under way come to nothing.

        A portal goes on counting its ids where it was: no portal ever gives one twice.
        """
        self.generation += 1
        self.pending_commits = 0
        self.orders = Orders()
        self.limits.reset()
        self.ledger = Ledger()
        for portal in self.portals.values():
            portal.forget(self.ledger)
        self.self_hosted = set()
        if self.witness is not None:
            self.witness.reset()

    def handle(self, request: Request) -> Reply | Coroutine[Any, Any, Reply]:
        """Answer one REST request, at once if nothing has to be waited for."""
        started = self.clock()
        path, _, query = request.target.partition("?")
        segments = [unquote(part) for part in path.strip("/").split("/")]
        portal_name = "default" if segments[0] == "rest" else segments.pop(0)
        if not segments or segments[0] != "rest":
            return Reply(404, b"<html><body>404 Not Found</body></html>", "text/html")
        portal = self.portal(portal_name)
        digest = hashlib.sha256(request.body).hexdigest()
        params = parameters(query, request.body, request.headers.get("content-type", ""))
        webhook = len(segments) == 4
        method = segments[-1].lower().removesuffix(".json") if len(segments) in (2, 4) else ""
        call = Call(method, params, digest, webhook)
        reference = portal.reference(call)
        try:
            self._admit(call, portal, segments, request.source, started)
        except RestError as error:
            self.ledger.request(portal_name, method, started, digest, reference, None, error.status)
            return self._error(error)
        picked: Picked = {}
        if self.orders.pending:
            picked = self.orders.pick(Subject(portal_name, method, call.verb, lambda: reference))
        watched = self.witness is not None and _is_write(call)
        if picked or watched:
            return self._carefully(portal, call, picked, started, reference)
        reply = self._run(portal, call, picked, started)
        self.ledger.request(portal_name, method, started, digest, reference, None, reply.status)
        return reply

    def _admit(
        self, call: Call, portal: Portal, segments: list[str], source: str, now: float
    ) -> None:
        """Limits, credential and method; raises the refusal."""
        if not self.limits.admits(portal.name, source, now):
            raise RestError(503, "QUERY_LIMIT_EXCEEDED", "Too many requests")
        secret = self.settings.secrets.get(portal.name)
        given = segments[2] if call.webhook else call.params.get("auth")
        if not given:
            raise RestError(401, "NO_AUTH_FOUND", "Wrong authorization data")
        if self.settings.secrets and given != secret:
            if call.webhook:
                raise RestError(401, "INVALID_CREDENTIALS", "Invalid request credentials")
            raise RestError(401, "invalid_token", "Unable to get application by token")
        if call.method not in METHODS:
            raise RestError(404, "ERROR_METHOD_NOT_FOUND", "Method not found!")

    async def _carefully(
        self, portal: Portal, call: Call, picked: Picked, started: float, reference: str | None
    ) -> Reply:
        """The way of a request that meets a fault or is watched by the witness."""
        names = "+".join(order.fault for order in picked.values()) or None
        witness = self.witness if _is_write(call) else None
        seen = await witness.begins(call.digest, reference) if witness else None
        delay = picked.get(Role.DELAY)
        if delay and delay.fault == "slow_execution":
            await asyncio.sleep(delay.seconds)
        reply = self._run(portal, call, picked, started)
        if delay and delay.fault != "slow_execution":
            await asyncio.sleep(delay.seconds)
        if reply.lost and picked[Role.ANSWER].fault != "late_commit":
            await asyncio.sleep(picked[Role.ANSWER].seconds)
        if witness and seen is not None:
            await witness.ends(seen)
        self.ledger.request(
            portal.name, call.method, started, call.digest, reference, names, reply.status
        )
        return reply

    def _run(self, portal: Portal, call: Call, picked: Picked, started: float) -> Reply:
        """Execute the call, unless a fault forbids it, and make the answer the caller sees."""
        fault = picked.get(Role.ANSWER)
        if fault is None:
            return self._execute(portal, call, picked, started)[0]
        if fault.fault == "late_commit":
            self._commit_later(portal, call, picked, fault.seconds)
            return LOST
        if fault.fault in RUNS_NOTHING:
            return self._spoiled(fault, Reply(0, b""))
        reply, answer = self._execute(portal, call, picked, started)
        if fault.fault == "wrong_echo" and answer is not None:
            return self._ok(_mistaken(answer), portal, started)
        return self._spoiled(fault, reply)

    def _execute(
        self, portal: Portal, call: Call, picked: Picked, started: float
    ) -> tuple[Reply, Answer | None]:
        twist = _twist(picked)
        effect = picked.get(Role.EFFECT)
        try:
            answer = portal.perform(call, twist, self._inside_batch(portal))
            if effect and effect.fault == "duplicate_execution":
                self._again(portal, call, twist)
        except RestError as error:
            return self._error(error), None
        except Exception:  # noqa: BLE001 - our own defect must look like a server's, and be seen
            traceback.print_exc()
            return Reply(500, b"<html><body>500</body></html>", "text/html"), None
        return self._ok(answer, portal, started), answer

    def _again(self, portal: Portal, call: Call, twist: Twist) -> None:
        """The second run of a doubled request: its failure shows nowhere."""
        try:
            portal.perform(call, twist, self._inside_batch(portal))
        except RestError:
            return

    def _commit_later(self, portal: Portal, call: Call, picked: Picked, seconds: float) -> None:
        generation = self.generation
        self.pending_commits += 1

        def commit() -> None:
            if generation == self.generation:
                self.pending_commits -= 1
                self._execute(portal, call, picked, self.clock())

        asyncio.get_running_loop().call_later(seconds, commit)

    def _inside_batch(self, portal: Portal) -> Callable[[Call], Twist]:
        """Faults for the commands of a batch: those that refuse, and those that change effects."""

        def ask(call: Call) -> Twist:
            if not self.orders.pending:
                return NO_TWIST
            subject = Subject(portal.name, call.method, call.verb, lambda: portal.reference(call))
            picked = self.orders.pick(subject)
            fault = picked.get(Role.ANSWER)
            if fault and fault.fault in RUNS_NOTHING and fault.fault in _REFUSALS:
                raise RestError(*_REFUSALS[fault.fault])
            return _twist(picked)

        return ask

    def _spoiled(self, order: Order, reply: Reply) -> Reply:
        """The answer the fault makes of the true one."""
        match order.fault:
            case "answer_lost_before_commit" | "answer_lost_after_commit":
                return LOST
            case "cut_body":
                return reply._replace(cut=True)
            case "html_body":
                return Reply(order.status or 200, LOGIN_PAGE, "text/html; charset=utf-8")
            case "not_json":
                return Reply(order.status or 200, b"OK, but not JSON", "text/plain")
            case "broken_gzip":
                return reply._replace(more_headers="Content-Encoding: gzip\r\n")
            case "uncoded_5xx_before_commit" | "uncoded_5xx_after_commit":
                return Reply(order.status or 502, GATEWAY_PAGE, "text/html")
            case name if name in _REFUSALS:
                status, code, text = _REFUSALS[name]
                return self._error(RestError(order.status or status, code, text))
        return reply

    def _ok(self, answer: Answer, portal: Portal, started: float) -> Reply:
        """The success envelope with its time block."""
        now = self.clock()
        envelope: dict[str, Any] = {"result": answer.result}
        if answer.paging:
            envelope.update(answer.paging)
        took = round(max(0.0, now - started), 6)
        envelope["time"] = {
            "start": started,
            "finish": now,
            "duration": took,
            "processing": took,
            "date_start": self._date(started),
            "date_finish": self._date(now),
        }
        if portal.name not in self.self_hosted:
            envelope["time"] |= {"operating_reset_at": int(now) + 600, "operating": took}
        return Reply(200, json.dumps(envelope, separators=(",", ":")).encode())

    @staticmethod
    def _error(error: RestError) -> Reply:
        return Reply(error.status, json.dumps(error.body(), separators=(",", ":")).encode())

    def _date(self, at: float) -> str:
        if self._second[0] != int(at):
            self._second = (int(at), moment(at))
        return self._second[1]


def _is_write(call: Call) -> bool:
    return call.verb in ("add", "update", "delete", "batch")


def _twist(picked: Picked) -> Twist:
    answer, effect = picked.get(Role.ANSWER), picked.get(Role.EFFECT)
    empty = answer is not None and answer.fault == "empty_list"
    if effect is None:
        return Twist(empty_list=True) if empty else NO_TWIST
    return Twist(
        lag=effect.seconds if effect.fault == "index_lag" else 0.0,
        drop_references=effect.fault == "field_ignored",
        keep_empty=effect.fault == "clear_ignored",
        empty_list=empty,
    )


def _mistaken(answer: Answer) -> Answer:
    """The same answer about somebody else's record."""
    item = answer.result.get("item") if isinstance(answer.result, dict) else None
    if not item:
        return answer
    name = "originId" if "originId" in item else "xmlId"
    return Answer({"item": item | {name: f"other-{item.get(name)}"}}, answer.paging)
