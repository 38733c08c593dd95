"""The form of a connection: settings, write-only secrets, and the connector's numbers and limits
with our own over them.

Fields beyond the model's are made from what the integration declares: `secret__NAME`,
`limit__GROUP__rate`,
`number__ACTION__max_exec`. A secret is never rendered back; left blank, the stored one stays.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, ClassVar
from urllib.parse import urlsplit

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from hub import credentials, registry, remote
from hub.contract import (
    CONDITIONAL_WRITE,
    FIND_BY_EXTERNAL_ID,
    IDEMPOTENCY_KEY,
    NUMBERS,
    Action,
    BadPayload,
    Call,
    Connector,
    RateLimit,
    Write,
)
from hub.models import Connection
from hub.panel import words
from hub.registry import ALL_ACTIONS

PLAIN = (
    "tenant", "name", "label", "integration", "account", "base_url", "contact", "sole_writer",
    "max_in_flight", "networks", "proxy_url", "ca_file", "options",
)  # fmt: skip
FIXED = ("tenant", "integration", "account")
"""What a connection stands for: part of every operation key, so never changed once saved (H10)."""
UNKNOWN = "unknown"


class Seconds(forms.CharField):
    """A positive number of seconds, or the word for "unknown" where that may be said; blank is
    None.
    """

    def __init__(self, *, may_be_unknown: bool, **options: Any) -> None:
        super().__init__(
            required=False, widget=forms.TextInput(attrs={"inputmode": "decimal"}), **options
        )
        self.may_be_unknown = may_be_unknown

    def clean(self, value: Any) -> Any:
        text = super().clean(value).strip()
        if not text:
            return None
        if text.casefold() in {UNKNOWN, str(_("unknown")).casefold()}:
            if self.may_be_unknown:
                return UNKNOWN
            raise ValidationError(
                _("This number must be known: it is the hard end of every exchange.")
            )
        return positive(text)


class Positive(forms.CharField):
    """A positive number; blank is None."""

    def __init__(self, *, least: float = 0.0, **options: Any) -> None:
        super().__init__(
            required=False, widget=forms.TextInput(attrs={"inputmode": "decimal"}), **options
        )
        self.least = least

    def clean(self, value: Any) -> Any:
        text = super().clean(value).strip()
        return positive(text, self.least) if text else None


def positive(text: str, least: float = 0.0) -> float:
    """The number in a text, comma or point; raises `ValidationError` for none, zero, or less than
    `least`.
    """
    try:
        number = float(text.replace(",", "."))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValidationError(_("Enter a number, such as 30 or 0.5."))
    if number <= 0:
        raise ValidationError(_("Enter a number above 0."))
    if number < least:
        raise ValidationError(_("Enter at least %(least)g.") % {"least": least})
    return number


@dataclass(frozen=True)
class Plan:
    """What one integration adds to the form."""

    connector: Connector | None
    trouble: str = ""
    limits: Mapping[str, RateLimit | None] = field(default_factory=dict)
    actions: Mapping[str, Action | None] = field(default_factory=dict)
    """Action -> declaration; the entry for all actions has none."""

    def secrets(self) -> tuple[str, ...]:
        return self.connector.secret_names if self.connector is not None else ()

    def numbers(self, action: str) -> tuple[str, ...]:
        """The numbers that mean something for an action."""
        declared = self.actions[action]
        if declared is None:
            return NUMBERS
        if not isinstance(declared, Write):
            return ("max_send",)
        names = ["max_send", "max_exec"]
        if declared.capabilities & (FIND_BY_EXTERNAL_ID | CONDITIONAL_WRITE) or declared.can_look:
            names.append("index_lag")
        if declared.capabilities & IDEMPOTENCY_KEY:
            names.append("key_ttl")
        return tuple(names)


def plan_for(connection: Connection) -> Plan:
    """What the connection's integration declares; a plan with `trouble` when its code is not
    installed.
    """
    try:
        connector = remote.describe(connection)
    except registry.UnknownIntegration as error:
        return Plan(None, str(error))
    limits: dict[str, RateLimit | None] = dict(connector.limits)
    for group in connection.limits:
        limits.setdefault(group, None)
    return Plan(
        connector,
        limits=limits,
        actions={ALL_ACTIONS: None, **dict(sorted(connector.declared().items()))},
    )


def _origin(source: str, dated: str) -> str:
    return ", ".join(part for part in (source, dated) if part) or str(_("no source named"))


def _entry(stored: Any) -> tuple[Any, str, str]:
    """Value, source and date of a stored number or limit value."""
    if isinstance(stored, Mapping):
        return stored.get("value"), str(stored.get("source", "")), str(stored.get("date", ""))
    return stored, "", ""


def _shown(value: float | None) -> str:
    return "" if value is None else words.number(value)


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


class ConnectionForm(forms.ModelForm):
    """Base of the forms `form_class` makes."""

    plan: ClassVar[Plan] = Plan(None)

    class Meta:
        model = Connection
        fields = PLAIN

    # --- each field -------------------------------------------------------------------------------

    def clean_base_url(self) -> str:
        text = self.cleaned_data["base_url"].strip()
        _check_address(text, _("Enter the address with https://, such as https://example.com."))
        return text

    def clean_proxy_url(self) -> str:
        text = self.cleaned_data["proxy_url"].strip()
        if text:
            _check_address(text, _("Enter the proxy's address with http://, host and port."))
        return text

    def clean_networks(self) -> str:
        text = self.cleaned_data["networks"].strip()
        for part in text.replace(",", " ").split():
            try:
                ipaddress.ip_network(part)
            except ValueError:
                raise ValidationError(
                    _("%(part)s is no network: write it like 10.1.0.0/16 or 127.0.0.1/32.")
                    % {"part": part}
                ) from None
        return text

    def clean_ca_file(self) -> str:
        text = self.cleaned_data["ca_file"].strip()
        if text and not text.startswith("/"):
            raise ValidationError(_("Enter the full path of a PEM file on the worker's host."))
        return text

    def clean_max_in_flight(self) -> int:
        number = self.cleaned_data["max_in_flight"]
        if number < 1:
            raise ValidationError(_("At least one call at once; to stop, pause the connection."))
        return int(number)

    def clean_options(self) -> dict[str, Any]:
        options = self.cleaned_data["options"]
        if options in (None, ""):
            return {}
        if not isinstance(options, dict):
            raise ValidationError(_('Enter names and values in braces, such as {"name": true}.'))
        return options

    # --- the whole --------------------------------------------------------------------------------

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        self._check_origins()
        self._check_secrets()
        return cleaned

    def _check_origins(self) -> None:
        """Who overrides a number says where the new one comes from."""
        for prefix, names in self._overrides():
            changed = [name for name in names if f"{prefix}__{name}" in self.changed_data]
            given = [
                name
                for name in changed
                if self.cleaned_data.get(f"{prefix}__{name}") not in (None, False)
            ]
            if not given:
                continue
            for name in ("source", "date"):
                if not self.cleaned_data.get(f"{prefix}__{name}") and not self.errors.get(
                    f"{prefix}__{name}"
                ):
                    self.add_error(
                        f"{prefix}__{name}",
                        _("Say where the number comes from, and of which day that is."),
                    )

    def _overrides(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        for group in self.plan.limits:
            yield f"limit__{group}", ("rate", "burst", "none")
        for action in self.plan.actions:
            yield f"number__{action}", self.plan.numbers(action)

    def _check_secrets(self) -> None:
        names = self.plan.secrets()
        given = {
            name: text for name in names if (text := self.cleaned_data.get(f"secret__{name}", ""))
        }
        self.sealed: str | None = None
        if given and self.plan.connector is not None:
            self._seal(type(self.plan.connector), given, names)
        if self.errors:
            for name in given:
                if not self.errors.get(f"secret__{name}"):
                    self.add_error(
                        f"secret__{name}",
                        _("Enter it once more: a secret is never sent back to the page."),
                    )

    def _seal(
        self, connector_class: type[Connector], given: dict[str, str], names: tuple[str, ...]
    ) -> None:
        kept: dict[str, str] = {}
        if self.instance.pk and set(given) != set(names):
            try:
                kept = credentials.open_sealed(self.instance.secrets, name=self.instance.name)
            except credentials.CannotOpen as error:
                self.add_error(f"secret__{next(iter(given))}", str(error))
                return
        try:
            given = {name: connector_class.tidy_secret(name, text) for name, text in given.items()}
            settings = remote.ConnectionSettings(
                self.cleaned_data.get("name") or self.instance.name,
                self.cleaned_data.get("account") or self.instance.account,
                self.cleaned_data.get("base_url") or self.instance.base_url,
            )
            # Adding the credential to a call is where a connector says that it cannot be one.
            connector_class(settings, {**kept, **given}).authorize(Call.get("/"))
        except BadPayload as error:
            text = str(error)
            named = text.partition(":")[0]
            self.add_error(f"secret__{named if named in given else next(iter(given))}", text)
            return
        self.sealed = credentials.seal({**kept, **given})

    # --- what is written --------------------------------------------------------------------------

    def written(self, fresh: Connection | None) -> list[str]:
        """Put what was changed onto the instance; the model fields to be saved, and no other.

        `fresh` is the row as it is now: its other numbers and limits are kept.
        """
        connection = self.instance
        names = [name for name in PLAIN if name in self.changed_data]
        if self.sealed is not None:
            connection.secrets = self.sealed
            names.append("secrets")
        changed = set(self.changed_data)
        if any(name.startswith("limit__") for name in changed):
            connection.limits = self._limits(fresh.limits if fresh else {})
            names.append("limits")
        if any(name.startswith("number__") for name in changed):
            connection.numbers = self._numbers(fresh.numbers if fresh else {})
            names.append("numbers")
        return names

    def _origin_of(self, prefix: str) -> dict[str, str]:
        day = self.cleaned_data.get(f"{prefix}__date")
        return {
            "source": self.cleaned_data.get(f"{prefix}__source") or "",
            "date": day.isoformat() if day else "",
        }

    def _changed(self, prefix: str) -> bool:
        return any(name.startswith(f"{prefix}__") for name in self.changed_data)

    def _limits(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        result = dict(stored)
        for group in self.plan.limits:
            prefix = f"limit__{group}"
            if not self._changed(prefix):
                continue
            rate = self.cleaned_data.get(f"{prefix}__rate")
            burst = self.cleaned_data.get(f"{prefix}__burst")
            if self.cleaned_data.get(f"{prefix}__none"):
                result[group] = None
            elif rate is None and burst is None:
                result.pop(group, None)
            else:
                own = {"rate": rate, "burst": burst, **self._origin_of(prefix)}
                result[group] = {name: value for name, value in own.items() if value is not None}
        return result

    def _numbers(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        result = {action: dict(entries) for action, entries in stored.items()}
        for action in self.plan.actions:
            prefix = f"number__{action}"
            if not self._changed(prefix):
                continue
            entries = result.get(action, {})
            for name in self.plan.numbers(action):
                value = self.cleaned_data.get(f"{prefix}__{name}")
                if value is None:
                    entries.pop(name, None)
                else:
                    entries[name] = {
                        "value": None if value == UNKNOWN else value,
                        **self._origin_of(prefix),
                    }
            if entries:
                result[action] = entries
            else:
                result.pop(action, None)
        return result


def _check_address(text: str, hint: str) -> None:
    try:
        parts = urlsplit(text)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname)
        port = parts.port
    except ValueError:
        good, port = False, None
    if not good or port == 0:
        raise ValidationError(hint)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValidationError(
            _("The address holds no login, query or fragment; a secret belongs into its own field.")
        )


def form_class(connection: Connection) -> type[ConnectionForm]:
    """The form for this connection (unsaved: for a new one of its integration)."""
    plan = plan_for(connection)
    fields: dict[str, Any] = {"plan": plan}
    for name in plan.secrets():
        fields[f"secret__{name}"] = forms.CharField(
            label=name,
            required=connection.pk is None,
            strip=True,
            max_length=2000,
            widget=forms.PasswordInput(
                render_value=False, attrs={"autocomplete": "new-password", "spellcheck": "false"}
            ),
            help_text=gettext_lazy("Stored; leave blank to keep it.")
            if connection.secrets
            else gettext_lazy("Not stored yet."),
        )
    for group, limit in plan.limits.items():
        fields |= _limit_fields(connection, group, limit)
    for action in plan.actions:
        fields |= _number_fields(connection, plan, action)
    return type("ConnectionForm", (ConnectionForm,), fields)


def _limit_fields(connection: Connection, group: str, limit: RateLimit | None) -> dict[str, Any]:
    own = connection.limits.get(group, ...)
    values = own if isinstance(own, Mapping) else {}

    def default(value: float) -> str:
        origin = _origin(limit.source, limit.dated) if limit else ""
        return _("Connector: %(value)s (%(origin)s)") % {
            "value": words.number(value),
            "origin": origin,
        }

    prefix = f"limit__{group}"
    return {
        f"{prefix}__rate": Positive(
            label=gettext_lazy("per second"),
            initial=_shown(values.get("rate")),
            help_text=default(limit.rate) if limit else "",
        ),
        f"{prefix}__burst": Positive(
            least=1.0,
            label=gettext_lazy("at once"),
            initial=_shown(values.get("burst")),
            help_text=default(limit.burst) if limit else "",
        ),
        f"{prefix}__none": forms.BooleanField(
            label=gettext_lazy("no limit"), required=False, initial=own is None
        ),
        **_origin_fields(prefix, str(values.get("source", "")), str(values.get("date", ""))),
    }


def _number_fields(connection: Connection, plan: Plan, action: str) -> dict[str, Any]:
    declared = plan.actions[action]
    stored = connection.numbers.get(action, {})
    prefix, source, dated = f"number__{action}", "", ""
    fields: dict[str, Any] = {}
    for name in plan.numbers(action):
        initial: Any = None
        if name in stored:
            value, its_source, its_date = _entry(stored[name])
            initial = _("unknown") if value is None else words.number(value)
            source, dated = its_source or source, its_date or dated
        help_text = ""
        if declared is not None:
            default = getattr(declared, name, None)
            help_text = _("Connector: %(value)s (%(origin)s)") % {
                "value": _("unknown") if default is None else words.number(default),
                "origin": _origin(getattr(declared, "source", ""), getattr(declared, "dated", "")),
            }
        fields[f"{prefix}__{name}"] = Seconds(
            may_be_unknown=name != "max_send",
            label=words.NUMBERS[name],
            initial=initial,
            help_text=help_text,
        )
    return fields | _origin_fields(prefix, source, dated)


def _origin_fields(prefix: str, source: str, dated: str) -> dict[str, Any]:
    return {
        f"{prefix}__source": forms.CharField(
            label=gettext_lazy("source"), required=False, max_length=300, initial=source
        ),
        f"{prefix}__date": forms.DateField(
            label=gettext_lazy("date of the source"),
            required=False,
            initial=_date(dated),
            widget=forms.DateInput(format="%Y-%m-%d", attrs={"type": "date"}),
        ),
    }
