"""From a label to a connector; what a connection may override; what a declaration must bring."""

from typing import Any

import pytest
from django.apps import AppConfig, apps

from hub.contract import (
    CONDITIONAL_WRITE,
    FIND_BY_EXTERNAL_ID,
    FULL_STATE,
    IDEMPOTENCY_KEY,
    POLL_JOB,
    Capability,
    ConnectionSettings,
    Connector,
    Kind,
    RateLimit,
    Read,
    Write,
)
from hub.registry import (
    IntegrationConfig,
    UnknownAction,
    UnknownIntegration,
    connector_class,
    declaration_problems,
    effective,
    integrations,
    make_connector,
)

SETTINGS = ConnectionSettings("demo", "acme", "https://remote.example")
SOURCED: dict[str, Any] = {"source": "the contract", "dated": "2026-08-21"}


def test_the_integrations_of_the_settings_are_installed(settings: Any) -> None:
    installed = integrations()
    assert [config.name for config in installed] == settings.INTEGRATIONS
    for config in installed:
        # Django would otherwise have taken a plain AppConfig, and nothing would say so.
        assert type(config).default is True
        connector = connector_class(config.label)
        assert connector.label == config.label
        assert declaration_problems(connector) == []
        made = make_connector(config.label, SETTINGS, {})
        assert isinstance(made, connector)
        assert made.settings is SETTINGS


def test_a_subclass_is_the_default_of_its_module_and_the_base_is_not() -> None:
    assert IntegrationConfig.default is False

    class ParceloConfig(IntegrationConfig):
        name = "parcelo"

    class SecondConfig(IntegrationConfig):
        name = "second"
        default = False

    assert ParceloConfig.default is True
    assert SecondConfig.default is False


def test_an_integration_whose_code_is_gone_is_named() -> None:
    with pytest.raises(UnknownIntegration, match="No integration 'parcelo' is installed"):
        connector_class("parcelo")
    with pytest.raises(UnknownIntegration):
        make_connector("parcelo", SETTINGS, {})
    with pytest.raises(UnknownIntegration):
        connector_class("auth")  # an app, but no integration


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("integrations.gone.Connector", "cannot be imported"),
        ("hub.registry.NoSuchThing", "cannot be imported"),
        ("", "cannot be imported"),
        ("hub.registry.integrations", "no subclass"),
    ],
)
def test_a_connector_that_cannot_be_loaded_is_named(
    path: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BrokenConfig(IntegrationConfig):
        name = "hub"
        label = "broken"
        connector = path

    broken = BrokenConfig("hub", __import__("hub"))
    monkeypatch.setattr(
        apps, "get_app_configs", lambda: [broken, AppConfig("hub", __import__("hub"))]
    )
    with pytest.raises(UnknownIntegration, match=words) as raised:
        connector_class("broken")
    assert "broken" in str(raised.value)


class Parcelo(Connector):
    """Implements everything."""

    label = "parcelo"
    actions = {
        "parcel.book": Write(FIND_BY_EXTERNAL_ID, max_exec=90, index_lag=20, **SOURCED),
        "label.fetch": Read(max_send=10),
    }

    def send(self, request: Any) -> Any: ...
    def find(self, request: Any) -> Any: ...
    def read(self, request: Any, remote_ref: str) -> Any: ...
    def poll(self, request: Any) -> Any: ...
    def check(self) -> Any: ...


PARCELO = Parcelo(SETTINGS, {})


def test_without_overrides_the_connectors_numbers_hold() -> None:
    assert effective(PARCELO, "parcel.book") is Parcelo.actions["parcel.book"]
    assert effective(PARCELO, "parcel.book", {}) == Parcelo.actions["parcel.book"]


def test_numbers_for_all_actions_give_way_to_an_actions_own() -> None:
    numbers: dict[str, dict[str, Any]] = {
        "*": {"max_exec": 1, "index_lag": 2, "max_send": 3},
        "parcel.book": {"max_exec": {"value": 7, "source": "measured", "date": "2026-09-01"}},
    }
    book = effective(PARCELO, "parcel.book", numbers)
    assert isinstance(book, Write)
    assert (book.max_exec, book.index_lag, book.max_send) == (7, 2, 3)
    assert (book.source, book.dated) == ("measured", "2026-09-01")
    assert effective(PARCELO, "label.fetch", numbers) == Read(max_send=3)


def test_a_number_may_be_made_unknown() -> None:
    book = effective(PARCELO, "parcel.book", {"parcel.book": {"max_exec": None}})
    assert isinstance(book, Write)
    assert book.max_exec is None


def test_declarations_are_asked_of_the_connection() -> None:
    class Generic(Parcelo):
        def declared(self) -> Any:
            return {"thing.put": Write(FULL_STATE, max_exec=5)}

    assert effective(Generic(SETTINGS, {}), "thing.put").max_send == 30
    with pytest.raises(UnknownAction, match=r"'parcel\.book'.*thing\.put"):
        effective(Generic(SETTINGS, {}), "parcel.book")


def with_action(base: type[Connector] = Parcelo, **more: Any) -> type[Connector]:
    declared = more["declared"] if "declared" in more else Write(**SOURCED, **more)
    return type("Tried", (base,), {"actions": {"parcel.book": declared}})


class Bare(Connector):
    label = "bare"


FINE: list[dict[str, Any]] = [
    {},
    {"capabilities": IDEMPOTENCY_KEY, "key_ttl": 60},
    {"capabilities": CONDITIONAL_WRITE},
    {"capabilities": FULL_STATE, "max_exec": 5},
    {"capabilities": FIND_BY_EXTERNAL_ID, "max_exec": 5, "index_lag": 5},
    {"capabilities": FIND_BY_EXTERNAL_ID, "max_exec": 5, "authoritative": True},
    {"capabilities": POLL_JOB},
    {"declared": Read()},
]


@pytest.mark.parametrize("more", FINE)
def test_a_full_declaration_is_fine(more: dict[str, Any]) -> None:
    assert declaration_problems(with_action(**more)) == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"capabilities": IDEMPOTENCY_KEY}, "without key_ttl"),
        ({"capabilities": IDEMPOTENCY_KEY, "key_ttl": 60, "key_atomic": False}, "max_exec"),
        ({"capabilities": FULL_STATE}, "without max_exec"),
        ({"capabilities": FULL_STATE, "max_exec": 5, "kind": Kind.CREATE}, "repeat it blindly"),
        ({"capabilities": FIND_BY_EXTERNAL_ID, "max_exec": 5}, "without index_lag"),
        ({"capabilities": FIND_BY_EXTERNAL_ID, "index_lag": 5}, "without max_exec"),
        ({"declared": Write(FULL_STATE, max_exec=5)}, "without their source"),
        ({"declared": Write(max_send=0)}, "max_send"),
        ({"declared": Write(limit_group="bulk")}, "limit group 'bulk'"),
    ],
)
def test_a_number_that_is_missing_is_named(more: dict[str, Any], words: str) -> None:
    problems = declaration_problems(with_action(**more))
    assert any(words in problem and "parcel.book" in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("capability", "method"),
    [
        (Capability.NOTHING, "send()"),
        (CONDITIONAL_WRITE, "read()"),
        (FIND_BY_EXTERNAL_ID, "find()"),
        (POLL_JOB, "poll()"),
    ],
)
def test_what_is_declared_but_not_implemented_is_named(capability: Capability, method: str) -> None:
    tried = with_action(Bare, capabilities=capability, max_exec=5, index_lag=5)
    assert any(method in problem for problem in declaration_problems(tried))


def test_a_look_without_a_way_to_look_is_named() -> None:
    tried = with_action(Bare, capabilities=FULL_STATE, max_exec=5, look=True)
    assert any("it can look" in problem for problem in declaration_problems(tried))


def test_label_check_and_rates_belong_to_every_connector() -> None:
    class Nameless(Connector):
        limits = {"default": RateLimit(0, 0)}

    problems = " ".join(declaration_problems(Nameless))
    for words in ("no label", "check()", "rate above 0"):
        assert words in problems
