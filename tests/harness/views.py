"""What the invariants must know of a remote, whichever one it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from integrations.bitrix24 import fields as contact
from integrations.bitrix24.simulator.client import Simulator

CREATE, UPDATE, DELETE = "create", "update", "delete"


@dataclass(frozen=True, slots=True)
class Effect:
    """One change that really happened there, in the order of `number`."""

    number: int
    account: str
    kind: str
    remote_id: str
    reference: str
    version: int | None
    digest: str
    by_person: bool = False
    key: str = ""


@dataclass(frozen=True, slots=True)
class Received:
    """One write that arrived there."""

    account: str
    digest: str
    at: float
    key: str = ""


@dataclass(frozen=True, slots=True)
class Thing:
    """One object as it is there now."""

    remote_id: str
    reference: str
    fields: Mapping[str, Any] = field(default_factory=dict)


class RemoteView(Protocol):
    """A remote as the invariants and the world see it."""

    integration: str
    secrets: Mapping[str, str]

    def base_url(self, account: str) -> str:
        """The address of one account."""
        ...

    def effects(self, account: str) -> list[Effect]:
        """All that really happened, oldest first."""
        ...

    def writes(self, account: str) -> list[Received]:
        """All writes that arrived, oldest first."""
        ...

    def requests(self, account: str) -> list[float]:
        """When each request arrived, reads too."""
        ...

    def things(self, account: str) -> dict[str, Thing]:
        """What is there now, by id."""
        ...

    def differences(
        self, wanted: Mapping[str, Any], there: Mapping[str, Any], seen: Mapping[str, Any]
    ) -> list[str]:
        """The owned fields that are not as wanted, in words."""
        ...

    def complaints(self) -> list[str]:
        """What the remote's own witness saw go wrong (I7, I19), and why it could not look."""
        ...

    def busy(self) -> bool:
        """Whether something is still to happen there, such as a late commit."""
        ...


_METHODS = {
    "crm.item.add": CREATE,
    "crm.item.update": UPDATE,
    "crm.item.delete": DELETE,
}


class StandIn:
    """The Bitrix24 stand-in, contacts only."""

    integration = "bitrix24"

    def __init__(self, simulator: Simulator, *, secret: str, witnessed: bool) -> None:
        self.simulator = simulator
        self.secrets: Mapping[str, str] = {"webhook": f"1/{secret}"}
        self.witnessed = witnessed

    def base_url(self, account: str) -> str:
        return self.simulator.base_url(account)

    def effects(self, account: str) -> list[Effect]:
        return [
            Effect(
                number=row["id"],
                account=account,
                kind=_METHODS.get(row["method"], str(row["method"])),
                remote_id=row["remote_id"],
                reference=row["reference"] or "",
                version=_whole(row["version"]) if "originVersion" in row["fields"] else None,
                digest=row["digest"],
                by_person=row["method"] == "person",
            )
            for row in self.simulator.ledger(portal=account)
        ]

    def writes(self, account: str) -> list[Received]:
        return [
            Received(account, row["digest"], row["at"])
            for row in self.simulator.requests(portal=account)
            if row["method"] in _METHODS
        ]

    def requests(self, account: str) -> list[float]:
        return [row["at"] for row in self.simulator.requests(portal=account)]

    def things(self, account: str) -> dict[str, Thing]:
        return {
            str(item["id"]): Thing(str(item["id"]), str(item.get("originId") or ""), item)
            for item in self.simulator.items(account)
        }

    def differences(
        self, wanted: Mapping[str, Any], there: Mapping[str, Any], seen: Mapping[str, Any]
    ) -> list[str]:
        return [
            f"{one.field}: {one.ours!r} wanted, {one.theirs!r} there"
            for one in contact.compare(wanted, there, seen)
        ]

    def complaints(self) -> list[str]:
        report = self.simulator.violations()
        found = [
            f"{one['invariant']}: {one['text']} ({one['seen']}; digest {one['digest'][:12]})"
            for one in report["violations"]
        ]
        found += [f"the witness was blind: {text}" for text in report["errors"]]
        wrote = any(row["method"] in _METHODS for row in self.simulator.requests())
        if self.witnessed and wrote and not report["checked"]["I7"]:
            found.append("I7: the witness checked nothing, although writes arrived")
        return found

    def busy(self) -> bool:
        return bool(self.simulator.status().get("pending_commits"))


def _whole(text: Any) -> int | None:
    try:
        return int(text)
    except (TypeError, ValueError):
        return None
