"""A connector with actions of every class, for the fake remote of `remote.py`.

Object types are named for their class: `a.create`, `a.update`, `al.create` (key and look),
`b.create`, `b.update`,
`b.delete`, `bp.create` (class c), `bp.update`, `bp.delete` (b′), `c.create`, `d.create`,
`d.update`, and the commands
`a.note`, `d.note`, `job.run` (accepted, polled, looked up by reference).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from hub.contract import (
    CONDITIONAL_WRITE,
    FIND_BY_EXTERNAL_ID,
    FULL_STATE,
    IDEMPOTENCY_KEY,
    POLL_JOB,
    Accepted,
    Action,
    Answer,
    Call,
    CallFailed,
    CallRefused,
    Candidate,
    Capability,
    Checked,
    Conflict,
    Connector,
    Difference,
    Done,
    Echo,
    ErrorTable,
    FailureKind,
    JobState,
    Kind,
    Looked,
    Progress,
    Request,
    Steps,
    Write,
)
from hub.states import ErrorClass


def _code(answer: Answer) -> str | None:
    try:
        found = answer.json
    except ValueError:
        return None
    code = found.get("error") if isinstance(found, dict) else None
    return code if isinstance(code, str) and code else None


ERRORS = ErrorTable(
    codes={
        "INVALID": ErrorClass.INVALID,
        "FORBIDDEN": ErrorClass.DENIED,
        "BAD_TOKEN": ErrorClass.CREDENTIAL,
        "NOT_FOUND": ErrorClass.MISSING,
        "BUSY": ErrorClass.TRANSIENT,
        "TOO_FAST": ErrorClass.THROTTLED,
        "KEY_IN_PROGRESS": ErrorClass.CONFLICT,
        "KEY_REUSED": ErrorClass.CONFLICT,
        "EXISTS": ErrorClass.CONFLICT,
        "VERSION": ErrorClass.CONFLICT,
    },
    conflicts={
        "KEY_IN_PROGRESS": Conflict.KEY_IN_PROGRESS,
        "KEY_REUSED": Conflict.KEY_REUSED,
        "EXISTS": Conflict.EXISTS,
        "VERSION": Conflict.VERSION,
    },
    code_of=_code,
)


def _write(capabilities: Capability, kind: Kind, **more: Any) -> Write:
    return Write(
        capabilities,
        kind=kind,
        max_send=1.5,
        max_exec=0.4,
        source="the tests' own remote",
        dated="2026-01-01",
        **more,
    )


_KEY = {"key_ttl": 3600.0}
_BY_ID = {"look": True, "authoritative": True}


class TestRemoteConnector(Connector):
    """Speaks to `FakeRemote`; the class of an action is the first part of its name."""

    __test__ = False
    label = "testremote"
    errors = ERRORS
    secret_names = ("token",)
    actions: ClassVar[Mapping[str, Action]] = {
        "a.create": _write(IDEMPOTENCY_KEY, Kind.CREATE, **_KEY),
        "a.update": _write(IDEMPOTENCY_KEY, Kind.UPDATE, **_KEY),
        "a.note": _write(IDEMPOTENCY_KEY, Kind.COMMAND, **_KEY),
        "al.create": _write(
            IDEMPOTENCY_KEY | FIND_BY_EXTERNAL_ID, Kind.CREATE, index_lag=0.2, **_KEY
        ),
        "b.create": _write(CONDITIONAL_WRITE, Kind.CREATE, authoritative=True),
        "b.update": _write(CONDITIONAL_WRITE, Kind.UPDATE, authoritative=True),
        "b.delete": _write(CONDITIONAL_WRITE, Kind.DELETE, authoritative=True),
        "bp.create": _write(FIND_BY_EXTERNAL_ID, Kind.CREATE, index_lag=0.2),
        "bp.update": _write(FULL_STATE, Kind.UPDATE, **_BY_ID),
        "bp.delete": _write(FULL_STATE, Kind.DELETE, **_BY_ID),
        "c.create": _write(FIND_BY_EXTERNAL_ID, Kind.CREATE, index_lag=0.2),
        "d.create": _write(Capability.NOTHING, Kind.CREATE),
        "d.update": _write(Capability.NOTHING, Kind.UPDATE),
        "d.note": _write(Capability.NOTHING, Kind.COMMAND),
        "job.run": _write(
            FIND_BY_EXTERNAL_ID | POLL_JOB, Kind.COMMAND, index_lag=0.2, yields_ref=True
        ),
    }

    def authorize(self, call: Call) -> Call:
        return replace(
            call,
            headers=(*call.headers, ("authorization", f"Bearer {self.secrets.get('token', '')}")),
        )

    # --- writing ---

    def send(self, request: Request) -> Steps[Done | Accepted]:
        kind = request.action.partition(".")[2]
        if request.action == "job.run":
            return (yield from self._run_job(request))
        if kind in ("create", "note") and not request.action.startswith("b."):
            answer = yield Call.post(
                "/things", json=_body(request), headers=self._key(request), write=True
            )
            return self._made(request, answer)
        if request.action == "b.create":
            answer = yield Call.build(
                "PUT",
                f"/things/{request.reference}",
                json=_body(request),
                headers={"if-none-match": "*"},
                write=True,
            )
            return self._made(request, answer)
        return (yield from self._change(request, delete=kind == "delete"))

    def _change(self, request: Request, *, delete: bool) -> Steps[Done | Accepted]:
        headers = self._key(request)
        if request.action.startswith("b.") and not delete and request.remote_version:
            headers["if-match"] = f'"{request.remote_version}"'
        answer = yield Call.build(
            "DELETE" if delete else "PUT",
            f"/things/{request.remote_ref}",
            json=_body(request),
            headers=headers,
            write=True,
        )
        if delete:
            return Done(remote_ref=request.remote_ref)
        return self._made(request, answer)

    def _key(self, request: Request) -> dict[str, str]:
        return (
            {"idempotency-key": request.remote_key}
            if request.action.startswith(("a.", "al."))
            else {}
        )

    def _made(self, request: Request, answer: Answer) -> Done:
        body = _object(answer)
        echo = Echo.NOT_EXPECTED
        if self._key(request):
            shown = answer.header("idempotency-key")
            echo = Echo.MISSING if shown is None else Echo.OURS
        elif request.action.endswith((".create", ".note")):
            shown = body.get("reference")
            echo = Echo.MISSING if not shown else Echo.OURS
        if body.get("reference") not in (None, "", request.reference) and request.action.endswith(
            (".create", ".note")
        ):
            echo = Echo.OTHER
        return Done(
            remote_ref=str(body.get("id", "")),
            remote_version=str(body.get("version", "")),
            values=dict(request.fields),
            echo=echo,
        )

    def _run_job(self, request: Request) -> Steps[Done | Accepted]:
        answer = yield Call.post("/jobs", json=_body(request), write=True)
        return Accepted(str(_object(answer).get("job", "")), poll_after=0.05)

    # --- looking ---

    def find(self, request: Request) -> Steps[Looked]:
        if request.action == "job.run":
            answer = yield Call.get("/jobs", params={"reference": request.reference})
            found = tuple(
                Candidate(
                    remote_ref=str(one["job"]),
                    matches=True,
                    reference=one["reference"],
                    version=str(one["version"]),
                    running=one["state"] == "running",
                )
                for one in _object(answer).get("items", ())
            )
            return Looked(found, authoritative=True)
        if request.action == "b.create":
            one = yield from self.read(request, request.reference)
            return Looked((one,) if one else (), authoritative=True)
        if not request.action.endswith(".create"):
            if not request.remote_ref:
                return Looked(complete=False, text="There is no id to look at.")
            one = yield from self.read(request, request.remote_ref)
            return Looked((one,) if one else (), authoritative=True)
        answer = yield Call.get("/things", params={"reference": request.reference})
        body = _object(answer)
        return Looked(
            tuple(self._candidate(request, one) for one in body.get("items", ())),
            complete=bool(body.get("complete")),
        )

    def read(self, request: Request, remote_ref: str) -> Steps[Candidate | None]:
        try:
            answer = yield Call.get(f"/things/{remote_ref}")
        except CallRefused as refused:
            if refused.refusal.error is ErrorClass.MISSING:
                return None
            raise
        return self._candidate(request, _object(answer))

    def _candidate(self, request: Request, one: Mapping[str, Any]) -> Candidate:
        there = one.get("fields", {})
        differences = tuple(
            Difference(name, value, there.get(name))
            for name, value in request.fields.items()
            if there.get(name) != value
        )
        return Candidate(
            remote_ref=str(one["id"]),
            matches=not differences,
            differences=differences,
            reference=one.get("reference", ""),
            version=str(one.get("version", "")),
            fields=there,
            remote_version=str(one.get("version", "")),
            values={name: there.get(name) for name in request.fields},
        )

    def poll(self, request: Request) -> Steps[Progress]:
        try:
            answer = yield Call.get(f"/jobs/{request.job}")
        except CallRefused as refused:
            if refused.refusal.error is ErrorClass.MISSING:
                return Progress(JobState.UNKNOWN, text="The remote does not know the job.")
            raise
        body = _object(answer)
        state = {"running": JobState.RUNNING, "finished": JobState.FINISHED}.get(
            body.get("state", ""), JobState.FAILED
        )
        return Progress(
            state,
            finished_for=str(body.get("version", "")),
            ours=str(request.version),
            remote_ref=str(body.get("id", "")),
        )

    def ping(self) -> Steps[None]:
        yield Call.get("/ping")

    def check(self) -> Steps[Checked]:
        yield Call.get("/ping")
        return Checked(())


def _body(request: Request) -> dict[str, Any]:
    return {
        "reference": request.reference,
        "version": request.version,
        "fields": dict(request.fields),
    }


def _object(answer: Answer) -> dict[str, Any]:
    found = answer.json
    if not isinstance(found, dict):
        raise CallFailed(FailureKind.PROTOCOL, "The answer is no object.", begun=True)
    return found
