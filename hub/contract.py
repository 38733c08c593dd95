"""What an integration's connector and the hub say to each other.

A connector describes calls and reads answers; it does no I/O. Its methods are generators (`Steps`):
they yield `Call`s, receive `Answer`s, and return an outcome. `delivery` drives them over the wire,
a test drives them with a list of recorded answers. Everything here is a frozen value; nothing reads
a clock or a network.
"""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, Flag, StrEnum, auto
from functools import cached_property
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlencode

from hub.states import ErrorClass

T = TypeVar("T")
JSON = Any


# --- what a remote can do ------------------------------------------------------------------------


class Capability(Flag):
    """What a remote offers for one action (protocol §8). Undeclared means class d: a person
    decides."""

    NOTHING = 0
    IDEMPOTENCY_KEY = auto()
    """The remote answers a repeat of our key with the first result. Needs `key_ttl`."""
    CONDITIONAL_WRITE = auto()
    """Create-if-absent, or update over an expected version, atomic over there. Needs `read`."""
    FULL_STATE = auto()
    """Class b′: a full-state write or delete by id; a repeat adds nothing. Needs `max_exec`."""
    FIND_BY_EXTERNAL_ID = auto()
    """A search for a reference we wrote in that very request. Needs `find`, `max_exec`,
    `index_lag`."""
    POLL_JOB = auto()
    """Work goes on over there under a reference. Needs `poll`."""


IDEMPOTENCY_KEY = Capability.IDEMPOTENCY_KEY
CONDITIONAL_WRITE = Capability.CONDITIONAL_WRITE
FULL_STATE = Capability.FULL_STATE
FIND_BY_EXTERNAL_ID = Capability.FIND_BY_EXTERNAL_ID
POLL_JOB = Capability.POLL_JOB


class Kind(StrEnum):
    """What an action does to the object it is about."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    COMMAND = "command"


class SafetyClass(StrEnum):
    """The classes of protocol §8, as they are shown to people."""

    A = "a"
    A_LOOK = "a+look"
    B = "b"
    B_PRIME = "b′"
    C = "c"
    D = "d"


def seconds(value: float) -> float:
    """A duration in seconds; there so that a declaration reads as one."""
    return float(value)


@dataclass(frozen=True)
class Write:
    """Declaration of a writing action: what the remote offers, and the numbers the hub must know.

    All durations are seconds. `None` means unknown: absence is then never trusted (protocol §9.5).
    A connection may override every number (`overridden`).
    """

    capabilities: Capability = Capability.NOTHING
    kind: Kind = Kind.COMMAND
    max_send: float = 30.0
    """Hard deadline over the whole exchange."""
    max_exec: float | None = None
    """A request that left us is executed, if ever, within this time (A3)."""
    index_lag: float | None = None
    """A search shows what was executed within this time (A3)."""
    authoritative: bool = False
    """The look is by id or exact reference on the primary store: no lag to wait out."""
    key_ttl: float | None = None
    key_atomic: bool = True
    key_stores_errors: bool = False
    full_state: bool | None = None
    """The payload says all we own of the object, so a newer one replaces it. Default: all but
    commands."""
    yields_ref: bool | None = None
    """A confirmed operation must know the remote id. Default: creates."""
    look: bool | None = None
    """Whether an outcome can be looked up (`find` or `read`). Default: by the capabilities."""
    read_back: bool = False
    """A success is not believed before a look has seen it: for remotes that say "done" and have
    done nothing. Needs a way to look."""
    keep_alive: bool | None = None
    """Whether a write may use a kept connection. Default: where a repeat is harmless (a, b, b′)."""
    limit_group: str = "default"
    source: str = ""
    """Where the numbers come from."""
    dated: str = ""
    """The date of that source."""

    @cached_property
    def safety(self) -> SafetyClass:
        """The class of protocol §8 the declaration amounts to."""
        if self.capabilities & IDEMPOTENCY_KEY and self.key_ttl is not None:
            return SafetyClass.A_LOOK if self.can_look else SafetyClass.A
        if self.capabilities & CONDITIONAL_WRITE:
            return SafetyClass.B
        if self.capabilities & FULL_STATE:
            return SafetyClass.B_PRIME
        if self.capabilities & FIND_BY_EXTERNAL_ID:
            return SafetyClass.C
        return SafetyClass.D

    @cached_property
    def can_look(self) -> bool:
        """Whether the connector can say if the write happened."""
        if self.look is not None:
            return self.look
        return bool(self.capabilities & (FIND_BY_EXTERNAL_ID | CONDITIONAL_WRITE))

    @cached_property
    def is_full_state(self) -> bool:
        """Whether a newer operation of the stream makes this one needless (protocol §12, §13)."""
        return self.kind is not Kind.COMMAND if self.full_state is None else self.full_state

    @cached_property
    def creates(self) -> bool:
        """Whether a confirmed operation of this action must know the remote id (C8)."""
        return self.kind is Kind.CREATE if self.yields_ref is None else self.yields_ref

    @cached_property
    def keeps_alive(self) -> bool:
        """Whether its write may go over a kept connection (protocol §18)."""
        if self.keep_alive is not None:
            return self.keep_alive
        return self.safety not in {SafetyClass.C, SafetyClass.D}

    def without(self, *capabilities: Capability) -> Write:
        """The same declaration with some capabilities taken away (an action that dropped a
        class)."""
        left = self.capabilities
        for capability in capabilities:
            left &= ~capability
        return replace(self, capabilities=left, look=self.look if left else False)


@dataclass(frozen=True, slots=True)
class Read:
    """Declaration of a reading action: repeated freely within its budget."""

    max_send: float = 30.0
    limit_group: str = "default"


Action = Write | Read

NUMBERS = ("max_send", "max_exec", "index_lag", "key_ttl")
"""The numbers of an action that a connection may override."""


def overridden(write: Write, numbers: Mapping[str, Any]) -> Write:
    """`write` with a connection's own numbers in place of the connector's.

    `numbers` maps a name of `NUMBERS` to a number, or to ``{"value": number, "source": ..., "date":
    ...}``. Unknown names are ignored here; the connection's form refuses them.
    """
    changes: dict[str, Any] = {}
    for name in NUMBERS:
        if name in numbers:
            value = numbers[name]
            if isinstance(value, Mapping):
                changes["source"] = str(value.get("source", ""))
                changes["dated"] = str(value.get("date", ""))
                value = value.get("value")
            changes[name] = None if value is None else float(value)
    return replace(write, **changes) if changes else write


# --- calls and answers ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request a connector asks the hub to make.

    `path` is relative to the connection's address (or absolute). `label` names the call in
    evidence: it never holds a secret, whereas the path may once the credential has been added by
    `authorize`.
    """

    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    write: bool = False
    label: str = ""
    limit_group: str = ""

    @classmethod
    def build(
        cls,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: JSON = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        write: bool = False,
        label: str = "",
        limit_group: str = "",
    ) -> Call:
        """Make a call; `json` is serialised once, here, so that the bytes of a repeat cannot
        differ."""
        given = list((headers or {}).items())
        body = content or b""
        if json is not None:
            body = jsonlib.dumps(json, separators=(",", ":"), ensure_ascii=False).encode()
            given.append(("content-type", "application/json"))
        if params:
            pairs = [(k, v) for k, v in params.items() if v is not None]
            path = f"{path}{'&' if '?' in path else '?'}{urlencode(pairs)}" if pairs else path
        return cls(
            method.upper(),
            path,
            tuple(given),
            body,
            write,
            label or path.split("?")[0],
            limit_group,
        )

    @classmethod
    def get(cls, path: str, **options: Any) -> Call:
        """A read."""
        return cls.build("GET", path, **options)

    @classmethod
    def post(cls, path: str, **options: Any) -> Call:
        """A POST; say `write=True` when it changes something over there."""
        return cls.build("POST", path, **options)


class _Unset(Enum):
    UNSET = auto()


@dataclass(slots=True)
class Answer:
    """What came back: status line, headers, body; `body_lost` when the status was read but the body
    was cut.

    Header names are lower case. `json` parses the body once and raises `ValueError` when it is
    none.
    """

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    body_lost: bool = False
    duration: float = 0.0
    _json: Any = field(default=_Unset.UNSET, repr=False, compare=False)

    @property
    def json(self) -> JSON:
        if self._json is _Unset.UNSET:
            self._json = jsonlib.loads(self.body)
        return self._json

    def header(self, name: str) -> str | None:
        """First value of a header, or None."""
        wanted = name.lower()
        return next((value for key, value in self.headers if key == wanted), None)


class FailureKind(StrEnum):
    """Why there was no answer; each is a row of protocol §10."""

    CONNECT = "connect"
    """Refused, unreachable, name not resolved, reset while connecting, connect time-out, no free
    slot."""
    CERTIFICATE = "certificate"
    ADDRESS = "address"
    """A bad URL, or an address the connection does not allow: configuration."""
    PROXY = "proxy"
    PROXY_AUTH = "proxy_auth"
    ABORTED = "aborted"
    """The guard before the first byte refused: the right to send had ended, or a stop was asked
    for."""
    LOCAL = "local"
    """The request could not be formed: our defect."""
    WRITE = "write"
    READ = "read"
    DEADLINE = "deadline"
    PROTOCOL = "protocol"
    OTHER = "other"


class CallFailed(Exception):
    """A call that has no usable answer; raised by the wire, and into a connector's read steps.

    `begun` says whether a byte of *our* request can have left: only then may it have been executed.
    `status` and `retry_after` (seconds) are set where an answer came that proves nothing.
    """

    def __init__(
        self,
        kind: FailureKind,
        text: str,
        *,
        begun: bool,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.begun = begun
        self.status = status
        self.retry_after = retry_after


class CallRefused(Exception):
    """The remote answered, and the answer is a refusal; raised into a connector's steps, which may
    catch it."""

    def __init__(self, refusal: Refused) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


class BadPayload(Exception):
    """A payload or configuration that no repeat can cure; the text names the field and the fix."""


# --- what was seen: the judgement's input --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No answer, or one that proves nothing. `nothing_left` is certain knowledge that no byte of
    ours left.

    `status` is set where an answer came; `retry_after` in seconds, already clamped: the earliest
    time for whatever comes next. `replayed` says that the remote gave back what it had stored under
    our key.
    """

    text: str
    nothing_left: bool = False
    kind: FailureKind | None = None
    status: int | None = None
    retry_after: float | None = None
    replayed: bool = False


class Conflict(StrEnum):
    """What kind of conflict a remote reported (outcome K)."""

    OTHER = "other"
    KEY_IN_PROGRESS = "key_in_progress"
    EXISTS = "exists"
    VERSION = "version"
    KEY_REUSED = "key_reused"


@dataclass(frozen=True, slots=True)
class Refused:
    """The remote answered and refused. `retry_after` in seconds, already clamped, or None.

    `replayed` says that the remote gave back what it had stored under our key.
    """

    error: ErrorClass
    text: str = ""
    code: str = ""
    status: int | None = None
    retry_after: float | None = None
    conflict: Conflict = Conflict.OTHER
    replayed: bool = False


class Echo(StrEnum):
    """Whether the answer showed that the remote kept our reference, or honoured our key."""

    OURS = "ours"
    NOT_EXPECTED = "not_expected"
    MISSING = "missing"
    """The answer lacks it: the field was ignored, or the key was (protocol §8)."""
    OTHER = "other"
    """It carries another one: this is not the answer to our request."""


@dataclass(frozen=True, slots=True)
class Done:
    """The write happened. `values` are the mapped values now seen there; `note` goes into the
    timeline."""

    remote_ref: str = ""
    remote_version: str = ""
    values: Mapping[str, JSON] = field(default_factory=dict)
    echo: Echo = Echo.NOT_EXPECTED
    note: str = ""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The remote took the job and works on under `reference`; `poll_after` seconds to the first
    poll."""

    reference: str
    poll_after: float = 5.0
    echo: Echo = Echo.NOT_EXPECTED


@dataclass(frozen=True, slots=True)
class BodyLost:
    """A status that says it happened, without the body that would say what (protocol §10)."""

    status: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """One owned field that is not as we meant it."""

    field: str
    ours: JSON
    theirs: JSON


@dataclass(frozen=True, slots=True)
class Candidate:
    """A remote object that may be ours.

    `matches` says that every field we own is equal after the remote's known normalisation.
    `version` is the version of ours the object carries (empty: it carries none). `place` is "" or
    where it lies ("bin", "archive").
    """

    remote_ref: str
    matches: bool
    differences: tuple[Difference, ...] = ()
    reference: str = ""
    version: str = ""
    fields: Mapping[str, JSON] = field(default_factory=dict)
    remote_version: str = ""
    values: Mapping[str, JSON] = field(default_factory=dict)
    url: str = ""
    place: str = ""
    running: bool = False
    """It is a job of ours that is still running (leads to `accepted`)."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look saw. `complete` is False when pages were missing or broken: then it is no
    answer."""

    candidates: tuple[Candidate, ...] = ()
    complete: bool = True
    authoritative: bool = False
    text: str = ""


class JobState(StrEnum):
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Progress:
    """What a poll saw. `finished_for` is the version the job was for, `ours` the one we want."""

    job: JobState
    finished_for: str = ""
    ours: str = ""
    remote_ref: str = ""
    remote_version: str = ""
    values: Mapping[str, JSON] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True, slots=True)
class Lapsed:
    """The lease ran out: the worker died, froze, or lost the database."""

    text: str = "the worker's lease ran out"


Seen = Unanswered | Refused | Done | Accepted | BodyLost | Looked | Progress | Lapsed
Steps = Generator[Call, Answer, T]


# --- the error table -----------------------------------------------------------------------------


def _no_code(answer: Answer) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class ErrorTable:
    """A remote's refusals as data. Codes are compared without regard to case, and before statuses.

    `code_of` finds the remote's code in an answer (None: it carries none); `text_of` its words. A
    code the table does not know counts as no answer (protocol §10); so does a status no table
    lists.
    """

    codes: Mapping[str, ErrorClass] = field(default_factory=dict)
    statuses: Mapping[int, ErrorClass] = field(default_factory=dict)
    conflicts: Mapping[str, Conflict] = field(default_factory=dict)
    code_of: Callable[[Answer], str | None] = _no_code
    text_of: Callable[[Answer], str] = lambda answer: ""

    def lookup(self, code: str) -> ErrorClass | None:
        """The class of a code, or None when the table does not know it."""
        wanted = code.casefold()
        return next((v for k, v in self.codes.items() if k.casefold() == wanted), None)

    def conflict(self, code: str) -> Conflict:
        """What kind of conflict a code of class CONFLICT means."""
        wanted = code.casefold()
        return next(
            (v for k, v in self.conflicts.items() if k.casefold() == wanted), Conflict.OTHER
        )


# --- the request a connector gets ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """All a connector may know of one operation."""

    action: str
    fields: Mapping[str, JSON]
    object_type: str
    source_system: str
    source_id: str
    version: int
    remote_key: str
    reference: str
    mark: str
    """Our installation's mark at remotes: what tells our objects from another system's."""
    remote_ref: str = ""
    """The remote id from the mapping, or empty when there is none."""
    remote_version: str = ""
    seen_values: Mapping[str, JSON] = field(default_factory=dict)
    """The mapped values last seen or written there."""
    repeat: bool = False
    """An earlier attempt of this operation may have been executed, or was."""
    variant: str = ""
    job: str = ""
    """For `poll`: the reference the remote gave when it accepted."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """What a connector may know of its connection; no secret, no address policy."""

    name: str
    account: str
    base_url: str
    options: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a connection test: what was checked, whether it is well, and what to do."""

    name: str
    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of `check`. `unproven` names actions whose declarations the test could not prove: they
    are class d on this connection until a later test is green."""

    findings: tuple[Finding, ...]
    unproven: tuple[str, ...] = ()
    account: str = ""

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A leaky bucket: `rate` per second, at most `burst` at once. `per` is "host" or "account"."""

    rate: float
    burst: float
    per: str = "host"
    source: str = ""
    dated: str = ""


class Connector:
    """Speaks for one account in one remote system; describes calls, reads answers, does no I/O.

    Subclasses declare `errors` and `actions` and implement what their capabilities call for. A
    method that is not implemented raises `NotImplementedError`; `manage.py check` reports what is
    declared but missing.
    """

    label: ClassVar[str] = ""
    errors: ClassVar[ErrorTable] = ErrorTable()
    actions: ClassVar[Mapping[str, Action]] = {}
    object_types: ClassVar[Mapping[str, str]] = {}
    """Action -> object type; default: the part of the action before the dot."""
    limits: ClassVar[Mapping[str, RateLimit]] = {}
    """Limit group -> default rate; a connection may override it."""
    secret_names: ClassVar[tuple[str, ...]] = ()
    """Names of the secrets a connection of this integration needs, in the order of its form."""

    def __init__(self, settings: ConnectionSettings, secrets: Mapping[str, str]) -> None:
        self.settings = settings
        self.secrets = secrets

    def declared(self) -> Mapping[str, Action]:
        """The declarations for *this* connection."""
        return self.actions

    def object_type(self, action: str) -> str:
        """The type of object an action is about."""
        return self.object_types.get(action, action.partition(".")[0])

    def authorize(self, call: Call) -> Call:
        """The call with the credential added. The result is never stored."""
        return call

    @classmethod
    def tidy_secret(cls, name: str, text: str) -> str:
        """A secret as it is to be stored, made of what a person pasted; bad text stays as it is."""
        return text

    def validate(self, action: str, fields: Mapping[str, JSON]) -> Iterable[str]:
        """Sentences about what is wrong with the fields of an action, each naming the field and the
        fix."""
        return ()

    def send(self, request: Request) -> Steps[Done | Accepted]:
        """Reads first if it must, then its one write, last. Returning without a write means:
        already as wanted."""
        raise NotImplementedError

    def find(self, request: Request) -> Steps[Looked]:
        """Look whether the write happened: by our reference, or by id where the mapping has one."""
        raise NotImplementedError

    def read(self, request: Request, remote_ref: str) -> Steps[Candidate | None]:
        """Read one remote object by id and compare it; None when it is not there. Used before a
        link."""
        raise NotImplementedError

    def poll(self, request: Request) -> Steps[Progress]:
        """Ask how an accepted job is doing."""
        raise NotImplementedError

    def ping(self) -> Steps[None] | None:
        """A harmless read for the breaker's probe, or None when the remote has none."""
        return None

    def check(self) -> Steps[Checked]:
        """Behind *test connection*: creates nothing, proves what it can."""
        raise NotImplementedError
