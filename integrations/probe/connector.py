"""The probe: an operation that goes the whole way without touching anybody's data.

It proves that submit, database, worker, wire and settle work together; its age is what
`/health/exchange` reports. The remote is the hub's own web process, which echoes a nonce and the
key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from hub.contract import (
    IDEMPOTENCY_KEY,
    JSON,
    Accepted,
    Action,
    Call,
    CallFailed,
    CallRefused,
    Checked,
    Connector,
    Done,
    Echo,
    ErrorTable,
    FailureKind,
    Finding,
    Kind,
    Request,
    Steps,
    Write,
    seconds,
)
from hub.states import ErrorClass

ECHO_PATH = "/health/echo"
LIVE_PATH = "/health/live"
MAX_NONCE = 200

ERRORS = ErrorTable(
    statuses={
        # No object can be missing here: a 404 says that the address is not a hub's.
        404: ErrorClass.INVALID,
        405: ErrorClass.INVALID,
        422: ErrorClass.INVALID,
    }
)


class ProbeConnector(Connector):
    """Sends a nonce to the hub's own web process and compares what comes back."""

    label = "probe"
    errors = ERRORS
    actions: ClassVar[Mapping[str, Action]] = {
        "probe.echo": Write(
            IDEMPOTENCY_KEY,
            kind=Kind.COMMAND,
            full_state=False,
            max_send=seconds(5),
            max_exec=seconds(5),
            key_ttl=seconds(86_400),
            keep_alive=True,
            source="the hub's own web process: an echo changes nothing",
            dated="2026-08-21",
        )
    }

    def validate(self, action: str, fields: Mapping[str, JSON]) -> Iterable[str]:
        """A probe is one nonce and nothing else."""
        nonce = fields.get("nonce")
        if not isinstance(nonce, str) or not 0 < len(nonce) <= MAX_NONCE:
            yield f"nonce: must be a text of 1 to {MAX_NONCE} characters."
        for name in sorted(set(fields) - {"nonce"}):
            yield f"{name}: unknown field; a probe has only nonce."

    def send(self, request: Request) -> Steps[Done | Accepted]:
        nonce = request.fields["nonce"]
        answer = yield Call.post(
            ECHO_PATH,
            json={"nonce": nonce},
            headers={"idempotency-key": request.remote_key},
            write=True,
        )
        body = _object(answer.json)
        if body.get("echo") != nonce:
            raise CallFailed(
                FailureKind.PROTOCOL,
                f"{ECHO_PATH} did not answer with our nonce: is this the hub's own address?",
                begun=True,
            )
        key = body.get("key")
        if not key:
            return Done(echo=Echo.MISSING)
        return Done(echo=Echo.OURS if key == request.remote_key else Echo.OTHER)

    def ping(self) -> Steps[None]:
        """Is the web process up?"""
        yield Call.get(LIVE_PATH)

    def check(self) -> Steps[Checked]:
        """Ask the web process whether it lives; nothing is echoed."""
        try:
            yield Call.get(LIVE_PATH)
        except (CallRefused, CallFailed) as error:
            text = f"The hub's web process does not answer at {self.settings.base_url}: {error}"
            return Checked((Finding("web", False, text),))
        return Checked((Finding("web", True, "The hub's web process answers."),))


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
