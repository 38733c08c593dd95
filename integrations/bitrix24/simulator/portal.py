"""One portal: who may call, and the methods it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from .batch import php_map, resolved, short_time
from .classic import filter_from_classic, from_classic, to_classic
from .errors import RestError
from .fields import EntityType, camel, classic, entity_type, moment
from .ledger import Ledger
from .params import bracketed
from .search import find
from .store import Change, Item, Store, shown

WRITES = frozenset({"add", "update", "delete"})
_CLASSIC = {"lead": 1, "deal": 2, "contact": 3, "company": 4, "quote": 7}
_VERBS = frozenset({"add", "get", "list", "update", "delete", "fields"})
_BATCH_LIMIT = 50
_OTHERS = (
    "profile", "user.current", "scope", "server.time", "method.get", "app.info", "feature.get",
    "crm.type.list", "batch",
)  # fmt: skip
METHODS = frozenset(
    {*(f"crm.item.{verb}" for verb in _VERBS), *_OTHERS}
    | {f"crm.{name}.{verb}" for name in _CLASSIC for verb in _VERBS}
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one method. ``digest`` is of the whole request body, also inside a batch."""

    method: str
    params: Mapping[str, Any]
    digest: str = ""
    webhook: bool = True

    @property
    def verb(self) -> str:
        """add, get, list, update, delete, fields, batch, or empty for everything else."""
        if self.method == "batch":
            return "batch"
        last = self.method.rpartition(".")[2]
        return last if last in _VERBS and self.method.startswith("crm.") else ""


@dataclass(frozen=True, slots=True)
class Twist:
    """Faults that change what is saved or found."""

    lag: float = 0.0
    drop_references: bool = False
    keep_empty: bool = False
    empty_list: bool = False


NO_TWIST = Twist()
Refuse = Callable[[Call], Twist]


class Answer(NamedTuple):
    """A successful answer. ``paging`` is ``total`` and, if there is more, ``next``."""

    result: Any
    paging: dict[str, int] | None = None


class Portal:
    """One portal's data and methods. Every committed change goes into the ledger."""

    def __init__(self, name: str, ledger: Ledger, clock: Callable[[], float]) -> None:
        self.name = name
        self.clock = clock
        self.ledger = ledger
        self.store = Store(clock)

    def forget(self, ledger: Ledger) -> None:
        """Lose every record and write into this ledger from now on; ids are not given again."""
        self.ledger = ledger
        self.store = self.store.emptied()

    def perform(self, call: Call, twist: Twist = NO_TWIST, inner: Refuse | None = None) -> Answer:
        """Run one call.

        Args:
            call: the method and its parameters.
            twist: faults ordered for this call.
            inner: asked before each command of a batch; may raise RestError to refuse it.

        Raises:
            RestError: what the service would answer instead.
        """
        if call.method == "batch":
            return self._batch(call, inner)
        verb = call.verb
        if verb:
            if call.method.startswith("crm.item."):
                return self._item(verb, call, twist)
            name = call.method.split(".")[1]
            if name in _CLASSIC and call.method.count(".") == 2:
                return self._classic(verb, entity_type(_CLASSIC[name]), call, twist)
        return self._other(call)

    def reference(self, call: Call) -> str | None:
        """The external identifier a call is about: given, stored, or searched for."""
        try:
            kind, fields, filters = self._about(call)
        except RestError:
            return None
        if kind is None:
            return None
        name = kind.reference_field
        if call.verb == "add":
            value = fields.get(name)
        elif call.verb == "list":
            value = filters.get("=" + name, filters.get(name))
        else:
            item = self._stored(kind, call.params.get("id", call.params.get("ID")))
            value = item.values.get(name) if item else None
        return value if isinstance(value, str) else None

    def _stored(self, kind: EntityType, item_id: Any) -> Item | None:
        try:
            return self.store.table(kind).items.get(int(item_id))
        except (TypeError, ValueError):
            return None

    def _about(self, call: Call) -> tuple[EntityType | None, Mapping[str, Any], Mapping[str, Any]]:
        if not call.verb or call.method == "batch":
            return None, {}, {}
        fields, filters = call.params.get("fields"), call.params.get("filter")
        fields = fields if isinstance(fields, Mapping) else {}
        filters = filters if isinstance(filters, Mapping) else {}
        if call.method.startswith("crm.item."):
            return _kind(call), fields, filters
        name = call.method.split(".")[1]
        if name not in _CLASSIC:
            return None, {}, {}
        kind = entity_type(_CLASSIC[name])
        return kind, from_classic(fields), filter_from_classic(kind, filters)

    # crm.item.*

    def _item(self, verb: str, call: Call, twist: Twist) -> Answer:
        kind = _kind(call)
        if verb == "fields":
            return Answer({"fields": _described(kind)})
        if verb == "list":
            given = call.params
            rows, paging = self._search(kind, given.get("filter"), given.get("order"), call, twist)
            select = given.get("select")
            if isinstance(select, Mapping):
                select = list(select.values())
            if isinstance(select, list) and select:
                items = [shown(kind, item, [str(name) for name in select]) for item in rows]
            else:
                items = [shown(kind, item) for item in rows]
                for item in items:
                    item.pop("fm", None)
            return Answer({"items": items}, paging)
        if verb == "add":
            change = self._add(kind, _given_fields(call), call, twist)
            return Answer({"item": shown(kind, change.item)})
        item_id = _required(call, "id")
        if verb == "get":
            return Answer({"item": shown(kind, self.store.table(kind).get(item_id))})
        if verb == "update":
            given = _given_fields(call)
            change = self._update(kind, item_id, given, call, twist)
            answer = shown(kind, change.item)
            if twist.keep_empty:
                answer.update({name: None for name, value in given.items() if value in (None, "")})
            return Answer({"item": answer})
        self._delete(kind, item_id, call)
        return Answer([])

    # crm.contact.* and its likes

    def _classic(self, verb: str, kind: EntityType, call: Call, twist: Twist) -> Answer:
        if verb == "fields":
            return Answer({classic(name): about for name, about in _described(kind).items()})
        if verb == "list":
            order = call.params.get("order")
            order = (
                {camel(str(k)): v for k, v in order.items()} if isinstance(order, Mapping) else None
            )
            filters = filter_from_classic(kind, call.params.get("filter"))
            rows, paging = self._search(kind, filters, order, call, twist)
            select = call.params.get("select")
            wanted = [str(name).upper() for name in select] if isinstance(select, list) else []
            return Answer([to_classic(kind, item, wanted or ["*"]) for item in rows], paging)
        try:
            if verb == "add":
                fields = from_classic(_given_fields(call))
                return Answer(self._add(kind, fields, call, twist).item.id)
            item_id = call.params.get("id", call.params.get("ID"))
            if verb == "get":
                item = self.store.table(kind).get(item_id)
                return Answer(to_classic(kind, item, ["*", "PHONE", "EMAIL", "WEB", "IM"]))
            if verb == "update":
                self._update(kind, item_id, from_classic(_given_fields(call)), call, twist)
            else:
                self._delete(kind, item_id, call)
            return Answer(True)
        except RestError as error:
            text = "Not found" if error.code == "NOT_FOUND" else error.description
            raise RestError(400, "", text) from None

    # saving

    def _add(self, kind: EntityType, fields: Mapping[str, Any], call: Call, twist: Twist) -> Change:
        change = self.store.add(kind, _twisted(kind, fields, twist), lag=twist.lag)
        self._record(call.method, kind, change.item, change.fields, call.digest)
        return change

    def _update(
        self, kind: EntityType, item_id: Any, fields: Mapping[str, Any], call: Call, twist: Twist
    ) -> Change:
        change = self.store.update(kind, item_id, _twisted(kind, fields, twist))
        if change.fields:
            self._record(call.method, kind, change.item, change.fields, call.digest)
        return change

    def _delete(self, kind: EntityType, item_id: Any, call: Call) -> None:
        self._record(call.method, kind, self.store.delete(kind, item_id), {}, call.digest)

    def by_hand(
        self, action: str, kind: EntityType, item_id: Any, fields: Mapping[str, Any]
    ) -> Item:
        """A person adds, updates or deletes a record; the ledger says ``person``."""
        call = Call("person", {})
        if action == "add":
            return self._add(kind, fields, call, NO_TWIST).item
        if action == "update":
            return self._update(kind, item_id, fields, call, NO_TWIST).item
        if action == "delete":
            item = self.store.table(kind).get(item_id)
            self._delete(kind, item_id, call)
            return item
        raise RestError(400, "ACTION", f"unknown action {action!r}; known: add, update, delete")

    def _record(
        self, method: str, kind: EntityType, item: Item, fields: dict[str, Any], digest: str
    ) -> None:
        values = item.values
        self.ledger.effect(
            self.name,
            method,
            kind.name,
            item.id,
            values.get(kind.reference_field),
            values.get("originVersion"),
            digest,
            fields,
            self.clock(),
        )

    def _search(
        self, kind: EntityType, filters: Any, order: Any, call: Call, twist: Twist
    ) -> tuple[list[Item], dict[str, int]]:
        now = self.clock()
        page = find(
            self.store.table(kind),
            filters=filters,
            order=order,
            start=call.params.get("start"),
            now=now,
            hide_since=now - twist.lag if twist.lag else None,
        )
        if twist.empty_list:
            return [], {"total": 0}
        return page.items, {"total": page.total} | (
            {} if page.next is None else {"next": page.next}
        )

    # batch

    def _batch(self, call: Call, inner: Refuse | None) -> Answer:
        given = call.params.get("cmd")
        if not isinstance(given, Mapping | list):
            raise RestError(400, "ERROR_ARGUMENT", "Argument 'cmd' is null or empty")
        pairs = given.items() if isinstance(given, Mapping) else enumerate(given)
        commands = {str(key): str(command) for key, command in pairs}
        if len(commands) > _BATCH_LIMIT:
            raise RestError(400, "ERROR_BATCH_LENGTH_EXCEEDED", "Max batch length exceeded")
        halt = str(call.params.get("halt", 0)).lower() in ("1", "true", "y")
        results: dict[str, Any] = {}
        errors: dict[str, Any] = {}
        totals: dict[str, int] = {}
        nexts: dict[str, int] = {}
        times: dict[str, Any] = {}
        for key, command in commands.items():
            method, _, query = command.partition("?")
            params = resolved(bracketed(query), results)
            one = replace(call, method=method.lower().removesuffix(".json"), params=params)
            try:
                if one.method == "batch":
                    raise RestError(
                        405,
                        "ERROR_BATCH_METHOD_NOT_ALLOWED",
                        "Method is not allowed for batch usage",
                    )
                answer = self.perform(one, inner(one) if inner else NO_TWIST)
            except RestError as error:
                errors[key] = error.body()
                if halt:
                    break
                continue
            results[key] = answer.result
            times[key] = short_time(self.clock())
            if answer.paging:
                totals[key] = answer.paging["total"]
                if "next" in answer.paging:
                    nexts[key] = answer.paging["next"]
        return Answer(
            {
                "result": php_map(results),
                "result_error": php_map(errors),
                "result_total": php_map(totals),
                "result_next": php_map(nexts),
                "result_time": php_map(times),
            }
        )

    # the rest

    def _other(self, call: Call) -> Answer:
        match call.method:
            case "profile":
                return Answer(
                    {"ID": "1", "ADMIN": True, "NAME": "Stand-in", "LAST_NAME": self.name,
                     "PERSONAL_GENDER": "", "TIME_ZONE": "", "TIME_ZONE_OFFSET": 10800}
                )  # fmt: skip
            case "user.current":
                return Answer(
                    {"ID": "1", "ACTIVE": True, "NAME": "Stand-in", "LAST_NAME": self.name,
                     "EMAIL": f"robot@{self.name}.example", "USER_TYPE": "employee"}
                )  # fmt: skip
            case "scope":
                return Answer(["crm", "user_basic", "task", "disk"])
            case "server.time":
                return Answer(moment(self.clock()))
            case "method.get":
                known = str(_required(call, "name")).lower() in METHODS
                return Answer({"isExisting": known, "isAvailable": known})
            case "feature.get":
                return Answer({"value": "Y"})
            case "crm.type.list":
                return Answer({"types": []}, {"total": 0})
            case "app.info":
                if call.webhook:
                    raise RestError(
                        403,
                        "WRONG_AUTH_TYPE",
                        "Current authorization type is denied for this method",
                    )
                return Answer(
                    {"ID": 1, "CODE": "stand.in", "VERSION": 1, "STATUS": "L", "INSTALLED": True,
                     "PAYMENT_EXPIRED": "N", "DAYS": None, "LANGUAGE_ID": "en", "LICENSE": "en_ent"}
                )  # fmt: skip
        raise RestError(404, "ERROR_METHOD_NOT_FOUND", "Method not found!")


def _kind(call: Call) -> EntityType:
    number = _required(call, "entityTypeId")
    try:
        return entity_type(int(number))
    except (TypeError, ValueError):
        raise _wrong_type("entityTypeId", number, "int") from None


def _required(call: Call, name: str) -> Any:
    value = call.params.get(name)
    if value is None:
        raise RestError(400, "100", f"Could not find value for parameter {{{name}}}")
    return value


def _given_fields(call: Call) -> Mapping[str, Any]:
    fields = _required(call, "fields")
    if fields == []:
        return {}
    if not isinstance(fields, Mapping):
        raise _wrong_type("fields", fields, "array")
    return fields


def _wrong_type(name: str, value: Any, wanted: str) -> RestError:
    text = (
        f"Invalid value {{{str(value)[:60]}}} to match with parameter {{{name}}}. "
        f"Should be value of type {wanted}."
    )
    return RestError(400, "100", text)


def _twisted(kind: EntityType, fields: Mapping[str, Any], twist: Twist) -> Mapping[str, Any]:
    if twist.drop_references:
        gone = (kind.reference_field, "originatorId", "originVersion")
        fields = {name: value for name, value in fields.items() if name not in gone}
    if twist.keep_empty:
        fields = {name: value for name, value in fields.items() if value not in (None, "")}
    return fields


def _described(kind: EntityType) -> dict[str, Any]:
    return {
        name: {
            "type": field.kind.value,
            "isRequired": False,
            "isReadOnly": field.read_only,
            "isImmutable": False,
            "isMultiple": name == "fm",
            "isDynamic": name.startswith("uf"),
            "title": name,
            "upperName": classic(name),
        }
        for name, field in kind.fields.items()
    }
