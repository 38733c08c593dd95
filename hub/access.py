"""Who may see which tenants and connections, and who may do what within them.

Scopes (`hub.models.Scope`) say where, Django's permissions say what; the roles are groups. What is
out of somebody's scope does not exist for them: they are told nothing of it, not even that it is
refused. `user` None stands for the hub itself and its operators' command line, and may everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import models
from django.db.models import F, Q, QuerySet

from hub.models import (
    Attempt,
    Bucket,
    Candidate,
    Connection,
    Decision,
    Dependency,
    Evidence,
    Gate,
    Heartbeat,
    Installation,
    Mapping,
    Note,
    Operation,
    Refusal,
    Reveal,
    ReviewCase,
    Scope,
    Tenant,
)
from hub.redaction import clean
from hub.sql import database_now

# --- rights ---------------------------------------------------------------------------------------

WORK = "hub.work_case"
DECIDE = "hub.decide_case"
JUDGE = "hub.judge_case"
DISCARD_DOUBT = "hub.discard_doubt"
SEND_AGAIN = "hub.send_again"
PAUSE = "hub.pause_connection"
SEE_VALUES = "hub.see_values"
SEE_TECHNICAL = "hub.see_technical"
EXPORT = "hub.export_history"

_NEEDED = {
    "look_again": WORK,
    "note": WORK,
    "take": WORK,
    "assign": WORK,
    "confirm": JUDGE,
    "send_again": SEND_AGAIN,
}


def needed(action: str, *, doubt: bool = False, judgement: bool = False) -> str:
    """The permission a decision takes; a verb this table does not name takes the one to decide.

    `doubt`: it may have happened. `judgement`: the advice for this verb is no more than that.
    """
    if action == "discard" and doubt:
        return DISCARD_DOUBT
    if judgement and action in ("retry", "link", "not_same", "choose"):
        return JUDGE
    return _NEEDED.get(action, DECIDE)


# --- where ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sight:
    """What somebody sees: whole tenants, and connections (those of the tenants included)."""

    tenants: frozenset[int]
    connections: frozenset[int]
    values: frozenset[int]
    """Connections whose personal values a scope lets them show."""
    all: bool = False

    def within(self, other: Sight) -> bool:
        """Whether `other` sees all of it, too."""
        return other.all or (
            not self.all and self.tenants <= other.tenants and self.connections <= other.connections
        )


EVERYTHING = Sight(frozenset(), frozenset(), frozenset(), all=True)
NOTHING = Sight(frozenset(), frozenset(), frozenset())


def sight(user: Any) -> Sight:
    """What a user sees. Worked out once per user object, as Django does with permissions: a request
    has a fresh one.
    """
    if user is None:
        return EVERYTHING
    if not user.is_active or user.pk is None:
        return NOTHING
    if user.is_superuser:
        return EVERYTHING
    found: Sight | None = getattr(user, "_hub_sight", None)
    if found is None:
        found = _sight_of(Scope.objects.filter(Q(user=user) | Q(group__user=user)))
        user._hub_sight = found
    return found


def _sight_of(scopes: QuerySet[Scope]) -> Sight:
    given = list(scopes.values_list("tenant_id", "connection_id", "values"))
    tenants = frozenset(tenant for tenant, _one, _values in given if tenant is not None)
    connections = {one for _tenant, one, _values in given if one is not None}
    shown = {one for _tenant, one, values in given if one is not None and values}
    open_tenants = {tenant for tenant, _one, values in given if tenant is not None and values}
    if tenants:
        owned = Connection.objects.filter(tenant__in=tenants).values_list("pk", "tenant_id")
        for pk, tenant in owned:
            connections.add(pk)
            if tenant in open_tenants:
                shown.add(pk)
    return Sight(tenants, frozenset(connections), frozenset(shown))


def sight_of(group: Group) -> Sight:
    """What a group lets its members see."""
    return _sight_of(Scope.objects.filter(group=group))


def sees_all(user: Any) -> bool:
    """Whether nothing is hidden from a user: figures of the whole installation are for them."""
    return sight(user).all


# How a row leads to its connections: it is visible when all of these that are set are visible.
_PATHS: dict[type[models.Model], tuple[str, ...]] = {
    Attempt: ("operation__connection",),
    Candidate: ("case__connection",),
    Connection: ("pk",),
    Dependency: ("child__connection", "parent__connection"),
    Evidence: ("operation__connection",),
    Gate: ("connection",),
    Mapping: ("connection",),
    Note: ("case__connection",),
    Operation: ("connection",),
    Reveal: ("connection",),
    ReviewCase: ("connection",),
}
# Rows about the machine, which belong to nobody: their permission is enough.
_NOBODYS = frozenset({Heartbeat, Installation})


def visible(user: Any, rows: QuerySet[Any]) -> QuerySet[Any]:
    """The rows of a queryset a user may see. A model this module does not know shows nothing, so
    that a new one is hidden until somebody says whose it is.
    """
    seen, model = sight(user), rows.model
    if seen.all or model in _NOBODYS:
        return rows
    if model is Operation:
        # Led by an index that begins with the connection, a list would read all its past.
        return rows.alias(of_connection=F("connection_id") + 0).filter(
            of_connection__in=sorted(seen.connections)
        )
    if model in _PATHS:
        for path in _PATHS[model]:
            rows = rows.filter(**{f"{path}__in": sorted(seen.connections)})
        return rows
    condition = _SPECIAL[model](user, seen) if model in _SPECIAL else Q(pk__in=[])
    return rows.filter(condition)


def _of_tenant(user: Any, seen: Sight) -> Q:
    return Q(pk__in=seen.tenants) | Q(
        pk__in=Connection.objects.filter(pk__in=seen.connections).values("tenant")
    )


def _of_decision(user: Any, seen: Sight) -> Q:
    # About an operation, about a case without one, or about both, which are then of one connection.
    mine = sorted(seen.connections)
    return Q(operation__connection__in=mine) | Q(operation__isnull=True, case__connection__in=mine)


def _of_scope(user: Any, seen: Sight) -> Q:
    # Scopes of groups are given by those who see everything: a group may have members elsewhere.
    mine = Q(tenant__in=seen.tenants) | Q(connection__in=seen.connections)
    return mine & Q(user__in=_people(user, seen))


def _of_user(user: Any, seen: Sight) -> Q:
    return Q(pk__in=_people(user, seen))


def _people(user: Any, seen: Sight) -> list[int]:
    """Those who see something, and nothing that the user does not see; and the user."""
    found = [user.pk]
    scopes: dict[int, list[tuple[int | None, int | None]]] = {}
    for pk, of_group, tenant, connection in _scopes_of_people():
        for one in (pk, of_group):
            if one is not None:
                scopes.setdefault(one, []).append((tenant, connection))
    root = set(get_user_model().objects.filter(is_superuser=True).values_list("pk", flat=True))
    for pk, places in scopes.items():
        if pk not in root and all(
            tenant in seen.tenants or connection in seen.connections
            for tenant, connection in places
        ):
            found.append(pk)
    return found


def _scopes_of_people() -> Iterable[tuple[int | None, int | None, int | None, int | None]]:
    return Scope.objects.values_list("user_id", "group__user", "tenant_id", "connection_id")


_SPECIAL: dict[type[models.Model], Any] = {
    Tenant: _of_tenant,
    Decision: _of_decision,
    Scope: _of_scope,
    get_user_model(): _of_user,
    Bucket: lambda user, seen: Q(pk__in=[]),  # a bucket names a host or account, and no connection
}


# --- may ------------------------------------------------------------------------------------------


def may(user: Any, right: str, subject: models.Model | None = None) -> bool:
    """Whether a user has a right; with a subject, whether they have it there.

    Personal values may be shown by permission, or where a scope says so.
    """
    if user is None:
        return True
    if subject is not None and not sees(user, subject):
        return False
    if user.has_perm(right):
        return True
    if right != SEE_VALUES or subject is None:
        return False
    connection = connection_of(subject)
    return connection is not None and connection in sight(user).values


def sees(user: Any, subject: models.Model) -> bool:
    """Whether a row is in a user's scope."""
    if sight(user).all:
        return True
    return bool(visible(user, type(subject)._default_manager.filter(pk=subject.pk)).exists())


def connection_of(subject: models.Model) -> int | None:
    """The connection a row belongs to; None when it belongs to none, or is not known to."""
    if isinstance(subject, Connection):
        return subject.pk
    for name in ("connection_id", "operation", "case", "child"):
        found = getattr(subject, name, None)
        if isinstance(found, int):
            return found
        if isinstance(found, models.Model):
            return connection_of(found)
    return None


# --- what is recorded -----------------------------------------------------------------------------


def reveal(user: Any, subject: models.Model, fields: Iterable[str] = ()) -> Reveal:
    """Record that somebody is being shown the personal values of a row; who calls it has asked
    `may` before, and shows nothing when this raises.
    """
    connection = connection_of(subject)
    if connection is None:
        raise ValueError(f"{subject!r} belongs to no connection: it has no personal values.")
    operation = (
        subject.pk if isinstance(subject, Operation) else getattr(subject, "operation_id", None)
    )
    return Reveal.objects.create(
        at=database_now(),
        user=user,
        user_name=user.get_username(),
        connection_id=connection,
        operation_id=operation,
        subject=str(subject._meta.model_name),
        subject_id=subject.pk,
        fields=clean(", ".join(fields), 2000),
    )


def refused(user: Any, permission: str, method: str, path: str) -> Refusal:
    """Record that somebody asked for a change without the right to it."""
    return Refusal.objects.create(
        at=database_now(),
        user=user,
        user_name=user.get_username(),
        permission=clean(permission, 120),
        method=clean(method, 10),
        path=clean(path, 300),
    )
