"""What `manage.py check` verifies: times that nest, declarations that hold, a database that keeps
its word.

`wrong_times` is asked again by everything that starts a drain: a lease shorter than its call is how
duplicates are made, so such a worker does not start (protocol §6, §18; F23).
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Tags, Warning, register
from django.db import DatabaseError, connections

from hub import registry
from hub.contract import Action, Write
from hub.credentials import CannotOpen, open_sealed
from hub.models import Connection
from hub.remote import describe
from hub.sql import is_postgres, rows

SETTLE = 15.0
"""Seconds a drain may need to settle what came back, once its last call has ended."""
GUARD_CYCLES = (0.5, 1.0)


# --- times ----------------------------------------------------------------------------------------


def wrong_times(database: bool = True) -> list[str]:
    """Sentences about times that do not nest, each with what to change; empty when all is well.

    `database` also judges the numbers in force on every connection, and may raise `DatabaseError`.
    """
    longest = {f"{label} as shipped": most for label, most in _declared_longest().items()}
    problems = [*_wrong_lease(), *_wrong_cluster(longest)]
    if database:
        in_force: dict[str, float] = {}
        for name, action, found in _in_force():
            in_force[f"connection {name}"] = max(
                in_force.get(f"connection {name}", 0.0), found.max_send
            )
            problems += _wrong_action(name, action, found)
        problems += [text for text in _wrong_cluster(in_force) if text not in problems]
    return problems


def _wrong_lease() -> Iterator[str]:
    """The lease is `max_send` plus the addend, so what has to fit beside the call is the same for
    every action.
    """
    margin, addend = settings.HUB_MARGIN, settings.HUB_LEASE_ADDEND
    # Two margins around the call, and at least as much again to prepare it: with less, most claims
    # would lapse unsent.
    if margin <= 0:
        yield (
            f"HUB_MARGIN is {margin:g} s: set it above 0, above the pauses your hosts are known "
            f"for."
        )
    if addend < 3 * margin or addend <= 0:
        yield (
            f"HUB_LEASE_ADDEND is {addend:g} s, but a lease has to outlast its call by "
            "preparation and two margins: "
            f"set it to {3 * margin:g} s or more, or lower HUB_MARGIN ({margin:g} s)."
        )


def _wrong_cluster(longest: dict[str, float]) -> Iterator[str]:
    """Drain budget + longest call + settle < task time-out < redelivery."""
    timeout, retry = settings.Q_CLUSTER["timeout"], settings.Q_CLUSTER["retry"]
    where, most = max(longest.items(), key=lambda one: one[1], default=("", 30.0))
    need = settings.HUB_DRAIN_BUDGET + most + SETTLE
    if need >= timeout:
        yield (
            f"HUB_TASK_TIMEOUT is {timeout} s, but a drain may take {need:g} s (budget "
            f"{settings.HUB_DRAIN_BUDGET:g}, "
            f"longest call {most:g} of {where}, settle {SETTLE:g}): raise it, or shorten the "
            "budget or the call."
        )
    if timeout >= retry:
        yield (
            f"HUB_TASK_RETRY is {retry} s: set it well above HUB_TASK_TIMEOUT ({timeout} s), "
            "or Django-Q2 starts a drain twice."
        )
    cycle = settings.Q_CLUSTER.get("guard_cycle", 0.5)
    if cycle not in GUARD_CYCLES:
        yield (
            f"Q_CLUSTER guard_cycle is {cycle}: set it to 0.5 or 1. Django-Q2 counts a hung "
            "worker's time down in such "
            "steps and ends it only when it meets 0 exactly."
        )


def _wrong_action(name: str, action: str, found: Action) -> Iterator[str]:
    where = f"Connection {name}, action {action}"
    if not (math.isfinite(found.max_send) and found.max_send > 0):
        yield f"{where}: max_send is {found.max_send}, set it to seconds above 0."
    if not isinstance(found, Write):
        return
    for number in ("max_exec", "index_lag", "key_ttl"):
        value = getattr(found, number)
        if value is not None and not (math.isfinite(value) and value >= 0):
            yield (
                f"{where}: {number} is {value}, set it to seconds of 0 or more, or leave it "
                f"unknown."
            )


def _declared_longest() -> dict[str, float]:
    longest: dict[str, float] = {}
    for config in registry.integrations():
        try:
            actions = config.connector_class().actions
        except registry.UnknownIntegration:
            continue  # said by declarations()
        if actions:
            longest[config.label] = max(action.max_send for action in actions.values())
    return longest


def _in_force() -> Iterator[tuple[str, str, Action]]:
    """Connection, action, and its declaration with the connection's own numbers in place."""
    for row in Connection.objects.filter(retired_at__isnull=True):
        try:
            connector = describe(row)
        except registry.UnknownIntegration:
            continue
        for action in connector.declared():
            yield row.name, action, registry.effective(connector, action, row.numbers)


@register()
def times(app_configs: Any = None, **more: Any) -> list[CheckMessage]:
    """Settings and declarations alone; the numbers of connections are judged with the databases."""
    return [Error(text, id="hub.E001") for text in wrong_times(database=False)]


# --- declarations and settings --------------------------------------------------------------------


@register()
def declarations(app_configs: Any = None, **more: Any) -> list[CheckMessage]:
    """What an installed connector declares it also implements, with the numbers it needs."""
    found: list[CheckMessage] = []
    for config in registry.integrations():
        try:
            connector = config.connector_class()
        except registry.UnknownIntegration as error:
            found.append(Error(str(error), id="hub.E002"))
            continue
        found += [Error(text, id="hub.E003") for text in registry.declaration_problems(connector)]
    return found


@register()
def workers(app_configs: Any = None, **more: Any) -> list[CheckMessage]:
    """What Django-Q2 and its database connection can take."""
    found: list[CheckMessage] = []
    database = settings.DATABASES["default"]
    if (database.get("OPTIONS") or {}).get("pool"):
        found.append(
            Error(
                "DATABASES has a connection pool: its threads do not survive Django-Q2's forks.",
                hint="Remove pool from the options; CONN_MAX_AGE keeps connections open.",
                id="hub.E004",
            )
        )
    if database["ENGINE"].endswith("sqlite3") and settings.HUB_WORKERS > 1:
        found.append(
            Warning(
                f"HUB_WORKERS is {settings.HUB_WORKERS} on SQLite: more than one worker slows "
                "all of them down.",
                hint="Set it to 1, or use PostgreSQL.",
                id="hub.W001",
            )
        )
    if settings.Q_CLUSTER.get("max_attempts") != 1 or not settings.Q_CLUSTER.get("ack_failures"):
        found.append(
            Error(
                "Q_CLUSTER repeats drains that failed: max_attempts must be 1 and ack_failures on.",
                hint="Operations are repeated by the hub, by its own rules.",
                id="hub.E005",
            )
        )
    if settings.HUB_WATCHDOG_BEAT_AGE < 3 * 2.0:
        found.append(
            Warning(
                f"HUB_WATCHDOG_BEAT_AGE is {settings.HUB_WATCHDOG_BEAT_AGE:g} s, but a drain "
                "beats every 2 s.",
                hint="Set it to 6 or more, or healthy workers are restarted.",
                id="hub.W002",
            )
        )
    return found


# --- databases ------------------------------------------------------------------------------------


@register(Tags.database)
def durability(
    app_configs: Any = None, databases: Sequence[str] | None = None, **more: Any
) -> list[CheckMessage]:
    """A marker that is forgotten after its commit means a duplicate, so commits must reach the disk
    (A1).
    """
    if not databases or "default" not in databases:
        return []
    try:
        return _forgetful()
    except DatabaseError as error:
        return [Error(f"The database cannot be asked how it keeps commits: {error}", id="hub.E010")]


def _forgetful() -> list[CheckMessage]:
    if is_postgres():
        off = {name: str(rows(f"SHOW {name}")[0][0]) for name in ("synchronous_commit", "fsync")}
        return [
            Error(
                f"PostgreSQL runs with {name} = off: a crash may forget a marker whose request "
                "has left.",
                hint=f"Set {name} = on for this database.",
                id="hub.E011",
            )
            for name, value in off.items()
            if value == "off"
        ]
    found: list[CheckMessage] = []
    in_memory = "memory" in str(connections["default"].settings_dict["NAME"])
    mode = str(rows("PRAGMA journal_mode")[0][0]).lower()
    if mode != "wal" and not in_memory:
        found.append(
            Error(
                f"SQLite runs with journal_mode = {mode}: web and worker block each other.",
                hint="Leave init_command of the options as shipped (PRAGMA journal_mode=WAL).",
                id="hub.E012",
            )
        )
    level = int(rows("PRAGMA synchronous")[0][0])
    if level < 2:
        found.append(
            Error(
                f"SQLite runs with synchronous = {level}: power loss may forget a marker whose "
                "request has left.",
                hint="Leave init_command of the options as shipped (PRAGMA synchronous=FULL).",
                id="hub.E013",
            )
        )
    return found


@register(Tags.database)
def numbers_in_force(
    app_configs: Any = None, databases: Sequence[str] | None = None, **more: Any
) -> list[CheckMessage]:
    """The connector's numbers with every connection's own in place."""
    if not databases or "default" not in databases or not _migrated():
        return []
    said = set(wrong_times(database=False))
    return [Error(text, id="hub.E014") for text in wrong_times() if text not in said]


@register(Tags.database)
def credentials_open(
    app_configs: Any = None, databases: Sequence[str] | None = None, **more: Any
) -> list[CheckMessage]:
    """The keys in force open what was sealed."""
    if not databases or "default" not in databases or not _migrated():
        return []
    found: list[CheckMessage] = []
    for row in Connection.objects.filter(retired_at__isnull=True).exclude(secrets=""):
        try:
            open_sealed(row.secrets, name=row.name)
        except CannotOpen as error:
            found.append(Error(str(error), id="hub.E015"))
    return found


def _migrated() -> bool:
    """Whether the tables are there; `check` also runs before the first `migrate`, and then says
    nothing of rows.
    """
    return Connection._meta.db_table in connections["default"].introspection.table_names()


# --- production -----------------------------------------------------------------------------------


@register(Tags.security, deploy=True)
def production(app_configs: Any = None, **more: Any) -> list[CheckMessage]:
    """Nothing of a local run may stand in production."""
    found: list[CheckMessage] = []
    if settings.HUB_LOCAL:
        found.append(
            Error(
                "This is a local run: keys are generated in HUB_HOME, cookies travel over plain "
                "HTTP.",
                hint=(
                    "Set HUB_LOCAL=0, HUB_SECRET_KEY, HUB_CREDENTIAL_KEYS, HUB_ALLOWED_HOSTS and "
                    "DATABASE_URL."
                ),
                id="hub.E020",
            )
        )
    elif _generated_keys():
        found.append(
            Error(
                "HUB_SECRET_KEY or HUB_CREDENTIAL_KEYS is one that a local run generated in "
                f"{settings.HUB_HOME}.",
                hint=(
                    "Make keys of your own for production, and keep them where your other "
                    "secrets are."
                ),
                id="hub.E021",
            )
        )
    if not settings.HUB_EMAIL_CONFIGURED:
        found.append(
            Warning(
                "EMAIL_URL is not set: mails about things that stand still are only printed.",
                hint="Set it, for example, to smtp://user:password@mail.example:587?tls=True",
                id="hub.W020",
            )
        )
    return found


@register(Tags.security, deploy=True)
def production_rows(app_configs: Any = None, **more: Any) -> list[CheckMessage]:
    """No demo account, and no customer's connection that may reach this machine itself.

    Not tagged as a check of the database: `check --deploy` alone has to find these.
    """
    try:
        return _demo_rows() if _migrated() else []
    except DatabaseError as error:
        text = f"The database does not answer, so its rows were not looked at: {error}"
        return [Info(text, id="hub.I001")]


def _demo_rows() -> list[CheckMessage]:
    from django.contrib.auth import get_user_model

    found: list[CheckMessage] = []
    demo = list(
        get_user_model()._default_manager.filter(email__endswith=DEMO_DOMAIN, is_active=True)
    )
    if demo:
        found.append(
            Error(
                f"Accounts of the demo are active: {', '.join(sorted(map(str, demo)))}.",
                hint="Deactivate them in the admin.",
                id="hub.E022",
            )
        )
    for row in Connection.objects.filter(retired_at__isnull=True).exclude(integration="probe"):
        local = [network for network in row.allowed_networks() if _is_loopback(network)]
        if local:
            found.append(
                Error(
                    f"Connection {row.name} may reach {', '.join(local)}, this machine itself.",
                    hint="Take the network out of the connection, or retire it.",
                    id="hub.E023",
                )
            )
    return found


DEMO_DOMAIN = "@demo.invalid"
"""The mail addresses of demo accounts end like this; `.invalid` never receives mail."""


def _is_loopback(network: str) -> bool:
    try:
        found = ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False
    loopbacks = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
    return any(found.version == one.version and found.overlaps(one) for one in loopbacks)


def _generated_keys() -> bool:
    """Whether a key in force is one that stands in `HUB_HOME`."""
    in_force: Iterable[str] = [settings.SECRET_KEY, *settings.HUB_CREDENTIAL_KEYS]
    kept: set[str] = set()
    for name in ("secret_key", "credential_keys"):
        path = settings.HUB_HOME / name
        if path.exists():
            kept |= {part.strip() for part in path.read_text().split(",")}
    return any(key in kept for key in in_force)
