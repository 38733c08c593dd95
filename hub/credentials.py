"""Seals and opens the secrets of connections. No other module sees them in clear.

They are sealed with MultiFernet under the installation's own key list (`HUB_CREDENTIAL_KEYS`): the
first key seals, all of them open. A secret that no key opens is a loud error, never an empty
credential.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings


class CannotOpen(Exception):
    """The sealed credentials of a connection do not open with the keys in force."""


def _box(keys: Sequence[str] | None) -> MultiFernet:
    return MultiFernet([Fernet(key) for key in (keys or settings.HUB_CREDENTIAL_KEYS)])


def seal(secrets: Mapping[str, str], keys: Sequence[str] | None = None) -> str:
    """The secrets as one sealed text, to be stored in `Connection.secrets`."""
    text = json.dumps(dict(secrets), sort_keys=True, ensure_ascii=False)
    return _box(keys).encrypt(text.encode()).decode()


def open_sealed(
    sealed: str, keys: Sequence[str] | None = None, *, name: str = ""
) -> dict[str, str]:
    """The secrets in clear; an empty text holds none.

    Raises `CannotOpen` when the key that sealed them is not in the list (or the text was altered).
    """
    if not sealed:
        return {}
    try:
        text = _box(keys).decrypt(sealed.encode())
    except InvalidToken:
        raise CannotOpen(
            f"The credentials of connection {name or '?'} do not open with the keys in force. "
            "Put the key that sealed them back into HUB_CREDENTIAL_KEYS, or enter the credentials "
            "again."
        ) from None
    return dict(json.loads(text))


def reseal(sealed: str, keys: Sequence[str] | None = None, *, name: str = "") -> str:
    """The same secrets under the first key of the list (after a rotation)."""
    return seal(open_sealed(sealed, keys, name=name), keys) if sealed else sealed
