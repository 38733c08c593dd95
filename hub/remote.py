"""A connection made ready to be spoken to: its connector, its route, its numbers, its limits.

Made from one row and thrown away after seconds, so that a changed setting takes effect without a
restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from hub import credentials, registry
from hub.contract import (
    Action,
    Answer,
    Call,
    CallFailed,
    CallRefused,
    ConnectionSettings,
    Connector,
    FailureKind,
    Refused,
    Request,
    Steps,
    Unanswered,
    Write,
)
from hub.http import Route, Wire, retry_after
from hub.models import Connection
from hub.policy import classify, degraded
from hub.redaction import Scrubber, sentence

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The effective limit of one group on one connection; `scope` names the bucket it shares."""

    scope: str
    group: str
    rate: float
    burst: float


@dataclass(slots=True)
class Remote:
    """One connection, ready: everything sending needs, and nothing that changes while it is
    used.
    """

    connection_id: int
    tenant_id: int
    tenant: str
    name: str
    account: str
    mark: str
    connector: Connector
    route: Route
    scrubber: Scrubber
    numbers: Mapping[str, Any]
    lost: Mapping[str, Any]
    limits: Mapping[str, RateLimit]
    max_in_flight: int
    longest_send: float
    opened_at: datetime | None = None
    """When the gate last opened: ages count from there (protocol §11)."""
    clock_jumped_at: datetime | None = None
    """When the database's clock last made a step (A4); read anew with every claim."""
    _actions: dict[str, Action] = field(default_factory=dict)

    def action(self, name: str) -> Action:
        """The declaration in force for an action; raises `registry.UnknownAction`."""
        found = self._actions.get(name)
        if found is None:
            found = registry.effective(self.connector, name, self.numbers)
            if isinstance(found, Write):
                found = degraded(found, self.lost.get(name))
            self._actions[name] = found
        return found

    def write(self, name: str) -> Write:
        """The declaration of a writing action; raises `registry.UnknownAction` for any other."""
        found = self.action(name)
        if not isinstance(found, Write):
            raise registry.UnknownAction(f"{name!r} reads; only writing actions can be submitted.")
        return found

    def limit(self, group: str) -> RateLimit | None:
        """The rate limit of a group of calls, or None when there is none."""
        return self.limits.get(group or "default") or self.limits.get("default")


def scope_of(base_url: str) -> str:
    """The remote host as rate limits know it."""
    parts = urlsplit(base_url)
    return f"{parts.hostname or ''}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def _limits(connection: Connection, connector: Connector) -> dict[str, RateLimit]:
    """The connector's limits with the connection's own in their place; a null says "none"."""
    result: dict[str, RateLimit] = {}
    for group in {*connector.limits, *connection.limits}:
        declared = connector.limits.get(group)
        own = connection.limits.get(group, ...)
        if own is None:
            continue
        rate = own.get("rate") if isinstance(own, Mapping) else None
        burst = own.get("burst") if isinstance(own, Mapping) else None
        rate = rate if rate is not None else (declared.rate if declared else None)
        burst = burst if burst is not None else (declared.burst if declared else None)
        if rate is None or burst is None:
            continue
        per_account = declared is not None and declared.per == "account"
        scope = (
            f"{connection.integration}/{connection.account}"
            if per_account
            else scope_of(connection.base_url)
        )
        result[group] = RateLimit(scope, group, float(rate), float(burst))
    return result


def settings_of(connection: Connection) -> ConnectionSettings:
    """What a connector may know of a connection."""
    return ConnectionSettings(
        connection.name, connection.account, connection.base_url, connection.options
    )


def describe(connection: Connection) -> Connector:
    """A connector for asking what it declares and checks; it holds no secret. Raises
    `UnknownIntegration`.
    """
    return registry.make_connector(connection.integration, settings_of(connection), {})


def declared(connection: Connection, action: str) -> Write:
    """The declaration in force for a writing action, asked without opening any credential.

    Raises `registry.UnknownIntegration` or `registry.UnknownAction`.
    """
    found = registry.effective(describe(connection), action, connection.numbers)
    if not isinstance(found, Write):
        raise registry.UnknownAction(f"{action!r} reads; only writing actions can be submitted.")
    return degraded(found, connection.gate.degraded.get(action))


def make(connection: Connection, *, mark: str) -> Remote:
    """Make a connection ready. Raises `registry.UnknownIntegration` or `credentials.CannotOpen`."""
    secrets = credentials.open_sealed(connection.secrets, name=connection.name)
    connector = registry.make_connector(connection.integration, settings_of(connection), secrets)
    declared = connector.declared()
    sends = [
        registry.effective(connector, name, connection.numbers).max_send for name in declared
    ] or [30.0]
    return Remote(
        connection_id=connection.pk,
        tenant_id=connection.tenant_id,
        tenant=connection.tenant.slug,
        name=connection.name,
        account=connection.account,
        mark=mark,
        connector=connector,
        route=Route(
            base_url=connection.base_url,
            networks=connection.allowed_networks(),
            proxy_url=connection.proxy_url,
            ca_file=connection.ca_file,
        ),
        scrubber=Scrubber(secrets.values()),
        numbers=connection.numbers,
        lost=connection.gate.degraded,
        limits=_limits(connection, connector),
        max_in_flight=connection.max_in_flight,
        longest_send=max(sends),
        opened_at=connection.gate.opened_at,
    )


def wrong(remote: Remote, answer: Answer, action: Write | None) -> Any:
    """What an answer says by itself (None: a success the connector has to read); its words without
    secrets.
    """
    header = answer.header("retry-after")
    wait = retry_after(header, datetime.now(UTC)) if header else None
    seen = classify(answer, remote.connector.errors, action, wait)
    if isinstance(seen, Refused):
        words = sentence(remote.scrubber.text(seen.text, 300))
        return replace(seen, text=words, code=remote.scrubber.text(seen.code, 60))
    if isinstance(seen, Unanswered):
        words = sentence(remote.scrubber.text(seen.text, 300))
        return replace(seen, text=words)
    return seen


@dataclass(frozen=True, slots=True)
class Returned:
    """A connector's steps have come to their end with this value."""

    value: Any


def advance(resume: Callable[[], Call]) -> Call | Returned:
    """Resume steps; their next call, or their end. (A `StopIteration` must not cross a
    coroutine.)
    """
    try:
        return resume()
    except StopIteration as end:
        return Returned(end.value)


async def read_through(
    remote: Remote,
    wire: Wire,
    steps: Steps[T],
    *,
    max_send: float,
    guard: Callable[[], None] | None = None,
) -> T:
    """Drive steps that only read, to their end.

    Raises `CallFailed`, `CallRefused`, or `BadPayload`; a write they ask for is refused.
    """
    step = advance(lambda: next(steps))
    while not isinstance(step, Returned):
        refuse_write(steps, step)
        step = await one_read(remote, wire, steps, step, max_send, guard)
    return step.value


def refuse_write(steps: Steps[Any], call: Call) -> None:
    """A look may not write: close the steps and raise `CallFailed`."""
    if call.write:
        steps.close()
        raise CallFailed(
            FailureKind.LOCAL, "A look asked for a write; it was not made.", begun=False
        )


async def one_read(
    remote: Remote,
    wire: Wire,
    steps: Steps[Any],
    call: Call,
    max_send: float,
    guard: Callable[[], None] | None,
) -> Call | Returned:
    """Make one read and hand its answer, or its failure, to the steps; what they ask for next, or
    their end.
    """
    try:
        answer = await wire.exchange(
            remote.route,
            remote.connector.authorize(call),
            max_send=max_send,
            guard=guard,
            keep_alive=True,
        )
    except CallFailed as failed:
        failure = failed
        return advance(lambda: steps.throw(failure))
    seen = wrong(remote, answer, None)
    if seen is None and not answer.body_lost:
        return advance(lambda: steps.send(answer))
    if isinstance(seen, Refused):
        refusal = seen
        return advance(lambda: steps.throw(CallRefused(refusal)))
    text = getattr(seen, "text", "") or f"HTTP {answer.status}"
    unusable = CallFailed(
        FailureKind.READ,
        text,
        begun=True,
        status=answer.status,
        retry_after=getattr(seen, "retry_after", None),
    )
    return advance(lambda: steps.throw(unusable))


def request_for(remote: Remote, operation: Any, fields: Mapping[str, Any], **more: Any) -> Request:
    """The request a connector gets for an operation (a row, or a claimed one)."""
    return Request(
        action=operation.action,
        fields=fields,
        object_type=operation.object_type,
        source_system=operation.source_system,
        source_id=operation.source_id,
        version=operation.version,
        remote_key=operation.remote_key,
        reference=operation.reference,
        mark=remote.mark,
        variant=operation.variant,
        job=operation.job,
        **more,
    )
