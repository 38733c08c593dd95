"""From a connection to its connector: which integrations are installed, and what they declare.

An integration is a Django app whose config is an `IntegrationConfig`; `settings.INTEGRATIONS`
switches it on. Nothing else names one, so nothing else has to change when one comes or goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from django.apps import AppConfig, apps
from django.utils.module_loading import import_string

from hub.contract import (
    CONDITIONAL_WRITE,
    FIND_BY_EXTERNAL_ID,
    FULL_STATE,
    IDEMPOTENCY_KEY,
    POLL_JOB,
    Action,
    ConnectionSettings,
    Connector,
    Kind,
    Read,
    Write,
    overridden,
)

ALL_ACTIONS = "*"
"""In a connection's overrides: the numbers that hold for every action without its own."""


class UnknownIntegration(LookupError):
    """A connection names an integration whose code is not installed, or cannot be loaded."""


class UnknownAction(LookupError):
    """An operation names an action the installed connector does not declare."""


class IntegrationConfig(AppConfig):
    """The app config of an integration: `name`, `label`, `verbose_name`, and where its connector
    is.
    """

    connector: ClassVar[str] = ""
    """Dotted path of the `Connector` subclass."""

    default = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Every apps.py also holds the imported base class. Django, seeing two config classes there
        # and none marked, quietly uses a plain AppConfig instead.
        if "default" not in cls.__dict__:
            cls.default = True

    def connector_class(self) -> type[Connector]:
        """Import the connector; raise `UnknownIntegration` when it cannot be."""
        try:
            found = import_string(self.connector)
        except ImportError as error:
            raise UnknownIntegration(
                f"The integration {self.label!r} is installed, but its connector "
                f"{self.connector!r} cannot be imported ({error}). Repair the integration, then "
                "restart web and worker."
            ) from error
        if not (isinstance(found, type) and issubclass(found, Connector)):
            raise UnknownIntegration(
                f"The integration {self.label!r} names {self.connector!r} as its connector, "
                "which is no subclass of hub.contract.Connector. Correct it in apps.py."
            )
        return found


def integrations() -> list[IntegrationConfig]:
    """The installed integrations, in the order of the settings."""
    return [config for config in apps.get_app_configs() if isinstance(config, IntegrationConfig)]


def connector_class(label: str) -> type[Connector]:
    """Return the connector class of the integration `label`.

    Raises `UnknownIntegration`, in words for the operator, when its code is gone (protocol: such an
    operation goes to review, the worker lives).
    """
    for config in integrations():
        if config.label == label:
            return config.connector_class()
    installed = ", ".join(config.label for config in integrations()) or "none"
    raise UnknownIntegration(
        f"No integration {label!r} is installed (installed: {installed}). Add its folder to "
        f"INTEGRATIONS in the settings and restart web and worker, or discard what waits for it."
    )


def make_connector(
    label: str, settings: ConnectionSettings, secrets: Mapping[str, str]
) -> Connector:
    """Return the connector that speaks for one connection; raise `UnknownIntegration`."""
    return connector_class(label)(settings, secrets)


def effective(
    connector: Connector, action: str, numbers: Mapping[str, Mapping[str, Any]] | None = None
) -> Action:
    """The declaration of `action` with the connection's own numbers in place of the connector's.

    `numbers` maps an action to its overrides (see `hub.contract.overridden`); those under
    `ALL_ACTIONS` hold for every action, and an action's own win over them. Raises `UnknownAction`.
    """
    declared = connector.declared()
    if action not in declared:
        known = ", ".join(sorted(declared)) or "none"
        raise UnknownAction(
            f"The integration {connector.label!r} has no action {action!r} (it has: {known})."
        )
    given = numbers or {}
    found = declared[action]
    for own in (given.get(ALL_ACTIONS), given.get(action)):
        if not own:
            continue
        if isinstance(found, Write):
            found = overridden(found, own)
        else:
            found = replace(found, max_send=overridden(_as_write(found), own).max_send)
    return found


def _as_write(read: Read) -> Write:
    return Write(max_send=read.max_send)


def declaration_problems(connector: type[Connector]) -> list[str]:
    """Sentences about what is declared but not implemented, or lacks its numbers."""
    problems: list[str] = []
    name = connector.__name__
    if not connector.label:
        problems.append(f"{name} has no label.")
    if not _implements(connector, "check"):
        problems.append(f"{name} does not implement check(), so no connection can be tested.")
    for group, limit in connector.limits.items():
        if limit.rate <= 0 or limit.burst < 1:
            problems.append(
                f"{name}: limit {group!r} needs a rate above 0 and a burst of 1 or more."
            )
    for action, declared in connector.actions.items():
        where = f"{name}: action {action!r}"
        if declared.max_send <= 0:
            problems.append(f"{where} needs a max_send above 0.")
        group = declared.limit_group
        if group != "default" and group not in connector.limits:
            problems.append(f"{where} is in limit group {group!r}, which has no rate.")
        if not _implements(connector, "send"):
            problems.append(f"{where} is declared, but send() is not implemented.")
        if isinstance(declared, Write):
            problems += [f"{where} {text}" for text in _write_problems(connector, declared)]
    return problems


def _write_problems(connector: type[Connector], write: Write) -> list[str]:
    """What one writing action lacks; each text continues the sentence "action … "."""
    problems: list[str] = []
    declared = write.capabilities

    def needs(
        capability: Any, *, methods: tuple[str, ...] = (), numbers: tuple[str, ...] = ()
    ) -> None:
        if not declared & capability:
            return
        problems.extend(
            f"declares {capability.name}, but {method}() is not implemented."
            for method in methods
            if not _implements(connector, method)
        )
        problems.extend(
            f"declares {capability.name} without {number}, so it can never be used."
            for number in numbers
            if getattr(write, number) is None
        )

    needs(IDEMPOTENCY_KEY, numbers=("key_ttl",))
    needs(CONDITIONAL_WRITE, methods=("read",))
    needs(FULL_STATE, numbers=("max_exec",))
    lag = () if write.authoritative else ("index_lag",)
    needs(FIND_BY_EXTERNAL_ID, methods=("find",), numbers=("max_exec", *lag))
    needs(POLL_JOB, methods=("poll",))
    if declared & IDEMPOTENCY_KEY and not write.key_atomic and write.max_exec is None:
        problems.append("has a key that is not atomic, so a repeat needs max_exec.")
    if write.can_look and not (_implements(connector, "find") or _implements(connector, "read")):
        problems.append("says it can look, but neither find() nor read() is implemented.")
    if write.read_back and not write.can_look:
        problems.append("wants its success read back, but has no way to look.")
    if declared & FULL_STATE and write.kind is Kind.CREATE:
        problems.append("is a create: FULL_STATE would repeat it blindly.")
    assumed = write.max_exec is not None or write.key_ttl is not None
    if assumed and not (write.source and write.dated):
        problems.append("states numbers of the remote without their source and its date.")
    return problems


def _implements(connector: type[Connector], method: str) -> bool:
    return getattr(connector, method) is not getattr(Connector, method)
