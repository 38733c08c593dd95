"""Secrets are sealed with the first key, opened by any, and never silently lost."""

from typing import Any

import pytest
from cryptography.fernet import Fernet

from hub.credentials import CannotOpen, open_sealed, reseal, seal

OLD, NEW, OTHER = (Fernet.generate_key().decode() for _ in range(3))
SECRETS = {"webhook": "planted-secret-word", "user": "пароль", "empty": ""}


def test_what_was_sealed_opens_again() -> None:
    sealed = seal(SECRETS, [NEW])
    assert open_sealed(sealed, [NEW]) == SECRETS


def test_a_sealed_text_shows_nothing_and_is_another_every_time() -> None:
    first, second = seal(SECRETS, [NEW]), seal(SECRETS, [NEW])
    assert first != second
    for sealed in (first, second):
        assert "planted" not in sealed
        assert "webhook" not in sealed
        sealed.encode("ascii")


def test_a_wrong_key_is_a_loud_error_that_says_what_to_do() -> None:
    sealed = seal(SECRETS, [OLD])
    with pytest.raises(CannotOpen) as raised:
        open_sealed(sealed, [NEW, OTHER], name="shop")
    told = str(raised.value)
    assert "shop" in told
    assert "HUB_CREDENTIAL_KEYS" in told
    assert "planted" not in told
    assert sealed not in told
    assert raised.value.__suppress_context__


@pytest.mark.parametrize("altered", ["{}", "x", "gAAAAA", "ключ", "\x00"])
def test_an_altered_text_is_no_empty_credential(altered: str) -> None:
    with pytest.raises(CannotOpen):
        open_sealed(altered, [NEW])
    sealed = seal(SECRETS, [NEW])
    with pytest.raises(CannotOpen):
        open_sealed(sealed[:-4] + "AAA=", [NEW])


def test_nothing_sealed_holds_no_secrets() -> None:
    assert open_sealed("", [NEW]) == {}
    assert reseal("", [NEW]) == ""


def test_a_key_is_rotated_without_a_moment_in_which_nothing_opens() -> None:
    sealed = seal(SECRETS, [OLD])
    both = [NEW, OLD]
    assert open_sealed(sealed, both) == SECRETS
    renewed = reseal(sealed, both)
    assert open_sealed(renewed, [NEW]) == SECRETS
    with pytest.raises(CannotOpen):
        open_sealed(renewed, [OLD])
    assert open_sealed(sealed, [OLD]) == SECRETS, "the old text stays what it was"


def test_resealing_with_a_wrong_key_changes_nothing_and_is_loud() -> None:
    with pytest.raises(CannotOpen):
        reseal(seal(SECRETS, [OLD]), [NEW], name="shop")


def test_the_keys_of_the_installation_are_used_unless_others_are_given(settings: Any) -> None:
    settings.HUB_CREDENTIAL_KEYS = [OTHER, OLD]
    sealed = seal(SECRETS)
    assert open_sealed(sealed, [OTHER]) == SECRETS
    assert open_sealed(sealed) == SECRETS
    settings.HUB_CREDENTIAL_KEYS = [NEW]
    with pytest.raises(CannotOpen):
        open_sealed(sealed)
