"""What may be kept as evidence: no secret in any spelling, no absurd length, nothing a database
refuses."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

MASK = "•••"
LONGEST = 600
_SENSITIVE = re.compile(
    r"(?i)(pass(word|wd)?|secret|token|authori[sz]ation|api[-_]?key|credential|cookie|signature)"
)
_PAIR = re.compile(
    r"""(?ix)
    (["']?\b(?:pass(?:word|wd)?|secret|access_token|refresh_token|token|auth|authorization|api[-_]?key|client_secret)\b["']?
    \s*[:=]\s*) (["']?)([^\s"',;&}<]{4,})\2
    """
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[a-z0-9._~+/=-]{6,}")
_UNKEPT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def spellings(secret: str) -> set[str]:
    """The forms in which a secret can turn up: plain, URL-encoded, base64 at any offset,
    JSON-escaped."""
    raw = secret.encode()
    forms = {
        secret,
        quote(secret, safe=""),
        quote_plus(secret),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        secret.replace("/", "\\/"),
        base64.b64encode(raw).decode().rstrip("="),
        base64.urlsafe_b64encode(raw).decode().rstrip("="),
    }
    for shift in (1, 2):
        # Inside a longer base64 text the secret starts at another bit: keep the part that is its
        # own.
        shifted = base64.b64encode(b"\x00" * shift + raw).decode().rstrip("=")
        forms.add(shifted[4:-1])
    return {form for form in forms if len(form) >= 4}


def clean(text: str, longest: int = LONGEST) -> str:
    """`text` without what a database refuses, cut to `longest` characters."""
    kept = _UNKEPT.sub("�", text)
    return kept if len(kept) <= longest else kept[: longest - 1] + "…"


class Scrubber:
    """Takes the secrets of one connection out of whatever is to be kept."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        parts = {
            part for secret in secrets for part in (secret, *secret.split("/")) if len(part) >= 6
        }
        forms = sorted({f for part in parts for f in spellings(part)}, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, forms))) if forms else None

    def text(self, text: str, longest: int = LONGEST) -> str:
        """`text` with every secret masked and cut to `longest` characters."""
        # Masked before it is cut: half a secret at the cut would no longer be recognised.
        if self._secrets is not None:
            text = self._secrets.sub(MASK, text)
        text = _PAIR.sub(lambda m: f"{m[1]}{m[2]}{MASK}{m[2]}", text)
        text = _BEARER.sub(lambda m: f"{m[1]} {MASK}", text)
        return clean(text, longest)

    def value(self, value: Any, depth: int = 6) -> Any:
        """A JSON value with secrets masked, by name and by content, and long texts cut."""
        match value:
            case str():
                return self.text(value)
            case Mapping() if depth:
                return {
                    clean(str(name), 100): MASK
                    if _SENSITIVE.search(str(name)) and isinstance(inner, str) and inner
                    else self.value(inner, depth - 1)
                    for name, inner in list(value.items())[:200]
                }
            case list() | tuple() if depth:
                return [self.value(inner, depth - 1) for inner in value[:200]]
            case None | bool() | int() | float():
                return value
            case _:
                return clean(str(value), 200)
