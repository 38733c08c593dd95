"""Identity of an intent: operation key, idempotency key, reference, stream, and payload
fingerprint.

Rules row. All follow protocol §7; nothing here is ever recomputed for a stored operation, so a
change of these functions cannot turn an old intent into a new one.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from typing import Any

import rfc8785

from hub.contract import BadPayload

MAX_DEPTH = 32
MAX_BYTES = 256 * 1024
MAX_DIGITS = 64
MAX_TEXT = 255
LARGEST_INTEGER = 2**53 - 1
WRITTEN_WITH_EXPONENT = 1e21
"""From here on RFC 8785 writes a number with an exponent."""


def length_prefixed(parts: Iterable[str]) -> bytes:
    """The parts, each behind its length in bytes, so that no two lists share an encoding (F10)."""
    encoded = [part.encode() for part in parts]
    return b"".join(len(part).to_bytes(4, "big") + part for part in encoded)


def _digest(parts: Iterable[str]) -> bytes:
    return hashlib.sha256(length_prefixed(parts)).digest()


def _base32(digest: bytes, length: int) -> str:
    """Lower case letters and digits only: safe in any collation, header or URL."""
    return base64.b32encode(digest).decode().lower().rstrip("=")[:length]


def operation_key(
    *,
    tenant: str,
    account: str,
    source_system: str,
    object_type: str,
    source_id: str,
    action: str,
    version: int,
    variant: str = "",
) -> str:
    """The stable identity of one intent, as 64 hexadecimal digits (protocol §7)."""
    return _digest(
        (
            "1",
            tenant,
            account,
            source_system,
            object_type,
            source_id,
            action,
            str(version),
            variant,
        )
    ).hex()


def remote_key(key: str, generation: int) -> str:
    """What the remote sees of an operation: derived once and stored; a new generation has its
    own."""
    return _base32(_digest(("remote", key, str(generation))), 40)


def entity_reference(
    *, tenant: str, account: str, object_type: str, source_system: str, source_id: str
) -> str:
    """The mark a created object keeps: it names the entity, without a version, in at most 40
    characters."""
    return _base32(
        _digest(("reference", tenant, account, object_type, source_system, source_id)), 40
    )


def stream_key(*, object_type: str, source_system: str, source_id: str) -> str:
    """The stream of an entity within its connection (a connection has one tenant)."""
    return _digest(("stream", object_type, source_system, source_id)).hex()[:32]


# --- payload ------------------------------------------------------------------------------------


def parse_payload(text: str | bytes) -> Any:
    """Read JSON strictly; raise `BadPayload` naming the field and the fix (F7).

    Refused besides bad syntax: duplicate names, NaN and infinities, numbers of absurd length,
    absurd depth or size.
    """
    size = len(text.encode(errors="surrogatepass")) if isinstance(text, str) else len(text)
    if size > MAX_BYTES:
        raise BadPayload(
            f"The payload has {size} bytes; at most {MAX_BYTES} are taken. Send less at once."
        )
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique_names,
            parse_constant=_no_constant,
            parse_int=_whole_number,
            parse_float=_decimal_number,
        )
    except RecursionError:
        raise BadPayload(
            f"The payload is nested too deeply; at most {MAX_DEPTH} levels are taken."
        ) from None
    except UnicodeDecodeError:
        raise BadPayload("The payload is not UTF-8 text.") from None
    except json.JSONDecodeError as error:
        raise BadPayload(
            f"The payload is not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from None


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise BadPayload(
                f"The name {_shown(name)} stands twice in one object; which one is meant?"
            )
        result[name] = value
    return result


def _no_constant(name: str) -> Any:
    raise BadPayload(f"{name} is not a JSON number; leave the field out or send a text.")


def _whole_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise BadPayload(
            f"A number has {len(digits)} digits; at most {MAX_DIGITS} are taken. Send it as a text."
        )
    return int(digits)


def _decimal_number(digits: str) -> float:
    if len(digits) > MAX_DIGITS:
        raise BadPayload(
            f"A number has {len(digits)} digits; at most {MAX_DIGITS} are taken. Send it as a text."
        )
    return float(digits)


def canonical_payload(value: Any) -> str:
    """The canonical text of a payload (RFC 8785); raise `BadPayload` for what one database would
    refuse.

    The text is stored as it is, so that a fingerprint is always taken of the same bytes.
    """
    if not isinstance(value, dict):
        raise BadPayload("The payload must be a JSON object: names and values.")
    try:
        _check(value, "", 0)
    except RecursionError:
        raise BadPayload(
            f"The payload is nested too deeply; at most {MAX_DEPTH} levels are taken."
        ) from None
    text = rfc8785.dumps(value).decode()
    if len(text.encode()) > MAX_BYTES:
        raise BadPayload(f"The payload has more than {MAX_BYTES} bytes; send less at once.")
    return text


def fingerprint(canonical: str) -> str:
    """SHA-256 of a canonical payload, as 64 hexadecimal digits."""
    return hashlib.sha256(canonical.encode()).hexdigest()


def check_text(name: str, text: str, *, most: int = MAX_TEXT, empty: bool = False) -> str:
    """A key part as it may be stored; raise `BadPayload` naming it when it may not."""
    if not isinstance(text, str):
        raise BadPayload(f"{name}: must be a text, not {type(text).__name__}.")
    if not text and not empty:
        raise BadPayload(f"{name}: must not be empty.")
    if len(text) > most:
        raise BadPayload(f"{name}: has {len(text)} characters; at most {most} are taken.")
    _check_characters(text, name)
    return text


def check_version(version: Any) -> int:
    """A version is a whole number that orders its stream."""
    if isinstance(version, bool) or not isinstance(version, int):
        raise BadPayload("version: must be a whole number.")
    if not 0 <= version <= LARGEST_INTEGER:
        raise BadPayload(f"version: must be between 0 and {LARGEST_INTEGER}.")
    return version


def _check(value: Any, path: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise BadPayload(
            f"{path or 'payload'}: nested too deeply; at most {MAX_DEPTH} levels are taken."
        )
    match value:
        case None | bool():
            return
        case str():
            _check_characters(value, path or "payload")
        case int():
            if abs(value) > LARGEST_INTEGER:
                raise BadPayload(
                    f"{path or 'payload'}: the number is too large to be exact; send it as a text."
                )
        case float():
            if value != value or value in (float("inf"), float("-inf")):
                raise BadPayload(
                    f"{path or 'payload'}: not a finite number; leave it out or send a text."
                )
            if LARGEST_INTEGER < abs(value) < WRITTEN_WITH_EXPONENT:
                # Its canonical form is that of a whole number, and is refused as one.
                raise BadPayload(
                    f"{path or 'payload'}: the number is too large to be exact; send it as a text."
                )
        case dict():
            for name, inner in value.items():
                if not isinstance(name, str):
                    raise BadPayload(f"{path or 'payload'}: a name must be a text.")
                _check_characters(name, f"a name in {path or 'payload'}")
                _check(inner, f"{path}.{name}" if path else name, depth + 1)
        case list() | tuple():
            for place, inner in enumerate(value):
                _check(inner, f"{path}[{place}]", depth + 1)
        case _:
            raise BadPayload(
                f"{path or 'payload'}: {type(value).__name__} has no JSON form; "
                "send a text, a number, a list or an object."
            )


def _check_characters(text: str, where: str) -> None:
    if "\x00" in text:
        raise BadPayload(f"{_shown(where)}: holds the character U+0000, which cannot be stored.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadPayload(
            f"{_shown(where)}: holds half of a surrogate pair, which is no character."
        ) from None


def _shown(text: str) -> str:
    return text.encode(errors="backslashreplace").decode().replace("\x00", "\\u0000")[:80]
