"""The test's side of the stand-in: everything under ``/_sim/``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from .errors import RestError
from .faults import CATALOGUE
from .fields import entity_named
from .service import Service
from .store import shown
from .wire import Reply, Request

HANDLES = {
    "GET ledger": "what was really changed; since=ID, and every other name in it, filter",
    "GET requests": "what was received; since=N, and every other name in it, filter",
    "GET items": "the records that exist now; portal=, entity=",
    "GET faults": "every fault with a text, and the orders still waiting",
    "POST faults": 'order one: {"method": "crm.item.add", "fault": "answer_lost_after_commit"}',
    "DELETE faults": "forget the orders",
    "POST limits": 'set a rate: {"portal": "acme", "rate": 2, "burst": 50}; rate null: none',
    "POST items": 'a person creates: {"portal": "acme", "entity": "contact", "fields": {}}',
    "POST people": 'change by hand: {"action": "update", "portal": "acme", "id": 1, "fields": {}}',
    "POST plant": "as people, always an update",
    "GET violations": "what the witness saw",
    "GET status": "counts, among them the late commits still to come",
    "POST reset": "forget everything but which ids were given",
}
"""What can be asked below ``/_sim/``, and for what."""


class Unusable(Exception):
    """A control request that cannot be right; the text says why."""


def is_control(request: Request) -> bool:
    """Whether a request is the tests' own, not one to a portal."""
    path = request.target.partition("?")[0]
    return path == "/_sim" or path.startswith("/_sim/")


def control(service: Service, request: Request) -> Reply:
    """Answer a request under ``/_sim/``; wrong ones get 400 or 404 with a text."""
    path, _, query = request.target.partition("?")
    name = path.removeprefix("/_sim").strip("/")
    asked = dict(parse_qsl(query))
    try:
        given = json.loads(request.body) if request.body else {}
        if not isinstance(given, dict):
            raise Unusable("the body must be a JSON object")
        return _json(_answer(service, request.verb, name, asked, given))
    except (Unusable, ValueError, TypeError) as error:
        return _json({"error": str(error)}, 400)
    except RestError as error:
        return _json({"error": f"{error.code}: {error.description}"}, 400)
    except KeyError as error:
        return _json({"error": f"{error} is missing"}, 400)
    except LookupError as error:
        return _json({"error": str(error)}, 404)


def _answer(
    service: Service, verb: str, name: str, asked: Mapping[str, str], given: Mapping[str, Any]
) -> Any:
    match verb, name:
        case "GET", "":
            return {"handles": HANDLES, "more": "integrations/bitrix24/simulator/README.md"}
        case "GET", "ledger":
            return {"effects": _newer(service.ledger.effects, "id", asked)}
        case "GET", "requests":
            return {"requests": _newer(list(service.ledger.requests), "n", asked)}
        case "GET", "items":
            return {"items": _items(service, asked)}
        case "POST", "items":
            return _by_hand(service, "add", given)
        case "POST", "people":
            return _by_hand(service, str(given["action"]), given)
        case "POST", "plant":
            return _by_hand(service, "update", given)
        case "GET", "faults":
            return {
                "faults": {key: fault.text for key, fault in CATALOGUE.items()},
                "orders": [order.shown() for order in service.orders.pending],
            }
        case "POST", "faults":
            return service.orders.place(given).shown()
        case "DELETE", "faults":
            service.orders.clear()
            return {"orders": []}
        case "POST", "limits":
            return _limits(service, given)
        case "POST", "reset":
            service.reset()
            return {"reset": True}
        case "GET", "violations":
            empty: dict[str, Any] = {"violations": [], "checked": {}, "errors": []}
            return service.witness.report() if service.witness else empty
        case "GET", "status":
            return {
                "pending_commits": service.pending_commits,
                "pending_orders": len(service.orders.pending),
                "portals": sorted(service.portals),
                "effects": len(service.ledger.effects),
                "requests": service.ledger.asked,
                "witness": service.witness is not None,
            }
    raise LookupError(f"there is no {verb} /_sim/{name}; GET /_sim/ lists what there is")


def _newer(rows: list[Any], counter: str, asked: Mapping[str, str]) -> list[dict[str, Any]]:
    """Rows after ``since``, and equal in every other name asked for."""
    since = int(asked.get("since", 0))
    wanted = {key: value for key, value in asked.items() if key != "since"}
    return [
        row._asdict()
        for row in rows
        if getattr(row, counter) > since
        and all(str(getattr(row, key, None)) == value for key, value in wanted.items())
    ]


def _items(service: Service, asked: Mapping[str, str]) -> list[dict[str, Any]]:
    kind = entity_named(asked.get("entity", "contact"))
    names = [asked["portal"]] if "portal" in asked else sorted(service.portals)
    return [
        {"portal": name} | shown(kind, item)
        for name in names
        if name in service.portals
        for item in list(service.portals[name].store.table(kind).items.values())
    ]


def _by_hand(service: Service, action: str, given: Mapping[str, Any]) -> dict[str, Any]:
    kind = entity_named(str(given.get("entity", "contact")))
    portal = service.portal(str(given.get("portal", "default")))
    item_id = None if action == "add" else given["id"]
    return shown(kind, portal.by_hand(action, kind, item_id, given.get("fields", {})))


def _limits(service: Service, given: Mapping[str, Any]) -> dict[str, Any]:
    portal = str(given.get("portal", "*"))
    if "rate" in given or "burst" in given:
        rate, burst = given.get("rate"), given.get("burst")
        service.limits.order(
            portal, None if rate is None else float(rate), None if burst is None else float(burst)
        )
    if "self_hosted" in given:
        (service.self_hosted.add if given["self_hosted"] else service.self_hosted.discard)(portal)
    return {"rates": {key: list(value) for key, value in service.limits.rates.items()}}


def _json(value: Any, status: int = 200) -> Reply:
    return Reply(status, json.dumps(value).encode())
