"""A connector of class a for the echo: every create carries its idempotency key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar

from hub.contract import (
    IDEMPOTENCY_KEY,
    JSON,
    Accepted,
    Action,
    Call,
    CallFailed,
    Checked,
    Connector,
    Done,
    Echo,
    ErrorTable,
    FailureKind,
    Finding,
    Kind,
    RateLimit,
    Request,
    Steps,
    Write,
    seconds,
)
from hub.states import ErrorClass

NAMES = ("sku", "quantity", "price", "title")


class BenchConnector(Connector):
    """Creates things at the echo. With the option `keep_alive: false` each write has its link."""

    label = "bench"
    errors = ErrorTable(statuses={404: ErrorClass.INVALID})
    secret_names = ("token",)
    # Generous: the tokens are taken and counted, and never run out.
    limits: ClassVar[Mapping[str, RateLimit]] = {"default": RateLimit(1e6, 1e6)}
    actions: ClassVar[Mapping[str, Action]] = {
        "thing.create": Write(
            IDEMPOTENCY_KEY,
            kind=Kind.CREATE,
            max_send=seconds(10),
            max_exec=seconds(10),
            key_ttl=seconds(86_400),
            source="the bench's own echo",
            dated="2026-11-30",
        )
    }
    closing: ClassVar[Mapping[str, Action]] = {
        name: replace(action, keep_alive=False)
        for name, action in actions.items()
        if isinstance(action, Write)
    }

    def declared(self) -> Mapping[str, Action]:
        return self.actions if self.settings.options.get("keep_alive", True) else self.closing

    def authorize(self, call: Call) -> Call:
        token = ("authorization", f"Bearer {self.secrets['token']}")
        return replace(call, headers=(*call.headers, token))

    def validate(self, action: str, fields: Mapping[str, JSON]) -> Iterable[str]:
        for name in sorted(set(fields) - set(NAMES)):
            yield f"{name}: unknown field; a thing has {', '.join(NAMES)}."

    def send(self, request: Request) -> Steps[Done | Accepted]:
        answer = yield Call.post(
            "/things",
            json=dict(request.fields),
            headers={"idempotency-key": request.remote_key},
            write=True,
        )
        body = answer.json
        if not body.get("id"):
            raise CallFailed(FailureKind.PROTOCOL, "the echo named no id", begun=True)
        ours = body.get("key") == request.remote_key
        return Done(
            remote_ref=body["id"],
            values=request.fields,
            echo=Echo.OURS if ours else Echo.OTHER,
        )

    def ping(self) -> Steps[None]:
        """Is the echo up?"""
        yield Call.get("/things")

    def check(self) -> Steps[Checked]:
        """Ask the echo whether it lives."""
        yield Call.get("/things")
        return Checked((Finding("echo", True, "The echo answers."),))
