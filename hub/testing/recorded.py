"""Recorded exchanges: one JSON file each, named `action__what_happened.json`, without secrets.

```json
{"source": "where it comes from, with its date", "steps": "send",
 "request": {"action": "parcel.book", "fields": {}, "remote_ref": "…"},
 "exchanges": [{"call": {"method": "POST", "label": "/parcels", "write": true, "json": {}},
                "answer": {"status": 201, "json": {}}}],
 "outcome": {"is": "Done", "remote_ref": "P-1"}}
```

An answer holds `json` or, as it came, `text`; or it is `{"lost": "read timed out"}`. An outcome
names the type of what was seen and those of its values that matter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from hub.contract import Answer, Call, CallFailed, Connector, FailureKind, Request, Steps
from hub.testing.driving import Reply, answer

_REQUEST = {
    "object_type": "thing",
    "source_system": "shop",
    "source_id": "s-1",
    "version": 1,
    "remote_key": "key1",
    "reference": "reference1",
    "mark": "hub-mark",
    "fields": {},
}


@dataclass(frozen=True)
class Recorded:
    """One exchange: the request, the calls in their order, what was answered, and what it amounts
    to.
    """

    name: str
    source: str
    steps: str
    request: Request
    calls: Sequence[Mapping[str, Any]]
    answers: Sequence[Reply]
    outcome: Mapping[str, Any]

    def start(self, connector: Connector) -> Steps[Any]:
        """The steps this exchange went through."""
        match self.steps:
            case "read":
                return connector.read(self.request, self.request.remote_ref)
            case "ping":
                pinged = connector.ping()
                if pinged is None:
                    raise AssertionError(f"{self.name}: the connector has no ping.")
                return pinged
            case "check":
                return connector.check()
            case "send" | "find" | "poll":
                steps: Steps[Any] = getattr(connector, self.steps)(self.request)
                return steps
        raise AssertionError(f"{self.name}: {self.steps!r} is no kind of steps.")

    def differences(self, calls: Sequence[Call], seen: Any) -> list[str]:
        """Where calls and outcome are not as recorded."""
        found = []
        if len(calls) != len(self.calls):
            found.append(f"{len(calls)} calls instead of {len(self.calls)}")
        for place, (made, wanted) in enumerate(zip(calls, self.calls, strict=False)):
            plain = {
                "method": made.method,
                "label": made.label,
                "write": made.write,
                "path": made.path,
                "json": _body(made),
            }
            found += [
                f"call {place}: {name} is {plain.get(name)!r}, not {value!r}"
                for name, value in wanted.items()
                if plain.get(name) != value
            ]
        shown = as_json(seen)
        found += [
            f"outcome: {name} is {shown.get(name)!r}, not {value!r}"
            for name, value in self.outcome.items()
            if shown.get(name) != value
        ]
        return found


def load(path: Path) -> Recorded:
    """Read one file; its name gives the action unless the request says otherwise."""
    data = json.loads(path.read_text())
    given = {**_REQUEST, "action": path.stem.partition("__")[0], **data.get("request", {})}
    exchanges = data["exchanges"]
    return Recorded(
        name=path.stem,
        source=data["source"],
        steps=data.get("steps", "send"),
        request=Request(**given),
        calls=[exchange["call"] for exchange in exchanges],
        answers=[_reply(exchange["answer"]) for exchange in exchanges],
        outcome=data["outcome"],
    )


def load_all(folder: Path | None) -> list[Recorded]:
    """All exchanges of a folder, by name."""
    return [load(path) for path in sorted(folder.glob("*__*.json"))] if folder else []


def as_json(value: Any) -> Any:
    """A contract value as plain JSON; a dataclass names its type under `is`."""
    if is_dataclass(value) and not isinstance(value, type):
        plain = {item.name: as_json(getattr(value, item.name)) for item in fields(value)}
        return {"is": type(value).__name__, **plain}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    return value


def _reply(data: Mapping[str, Any]) -> Answer | CallFailed:
    if "lost" in data:
        return CallFailed(FailureKind.READ, data["lost"], begun=True)
    headers = data.get("headers", {})
    if "text" in data:
        return answer(data["status"], body=data["text"].encode(), headers=headers)
    return answer(data["status"], data.get("json"), headers=headers)


def _body(call: Call) -> Any:
    if not call.body:
        return None
    try:
        return json.loads(call.body)
    except ValueError:
        return call.body.decode(errors="replace")
