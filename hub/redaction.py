"""What may be kept as evidence: no secret in any spelling, no absurd length, nothing a database
refuses."""

from __future__ import annotations

import base64
import html
import json
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, urlsplit

MASK = "•••"
LONGEST = 600
SHORTEST = 4
"""Characters a secret must have to be searched for; parts of one need `SHORTEST_PART`."""
SHORTEST_PART = 6
_SENSITIVE = re.compile(
    r"(?i)(pass(word|wd)?|secret|token|authori[sz]ation|api[-_]?key|credential|cookie|signature)"
)
_HEADER = re.compile(
    r"""(?ix) (\b(?:proxy-)?authorization\b["']?\s*[:=]\s*["']?
        |\b(?:set-)?cookie\b["']?\s*:\s*["']?) [^\r\n"'}<]{4,}"""
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[a-z0-9._~+/=-]{6,}")
# No expression here may begin with something that can match over and over: what is searched comes
# from remotes, and one that takes the square of a text's length stops the whole drain.
_PAIR = re.compile(
    r"""(?ix)
    ((?:pass(?:word|wd)?|secret|token|auth|api[-_]?key)\b["']?(?:\]|%5D)?\s*[:=]\s*)
    (?:(["'])((?:(?!\2)[^\r\n\\]|\\.){4,})\2|([^\s"',;&}<]{4,}))
    """
)
_LOGIN = re.compile(r"(?<=[a-z0-9+.-])://[^\s/@:\"'<>]*:[^\s/@\"'<>]+@", re.IGNORECASE)
_UNKEPT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_ALPHABET_62 = {"+": r"(?:\+|-|%2B)", "/": r"(?:\\?/|_|%2F)"}


def spellings(secret: str) -> set[str]:
    """The forms in which a secret can turn up: plain, URL-encoded, base64 at any offset,
    JSON-escaped.

    For searching what was kept. `Scrubber` takes out more: every mixture of them.
    """
    forms = {
        secret,
        quote(secret, safe=""),
        quote_plus(secret),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        secret.replace("/", "\\/"),
    }
    for core in _base64_cores(secret):
        forms |= {core, core.replace("+", "-").replace("/", "_")}
    return {form for form in forms if len(form) >= SHORTEST}


def _base64_cores(secret: str) -> Iterator[str]:
    """What the secret alone decides of a base64 text it is part of, at each of three offsets."""
    raw = secret.encode(errors="surrogatepass")
    for shift in range(3):
        text = base64.b64encode(b"\x00" * shift + raw).decode()
        first, end = -(-8 * shift // 6), 8 * (shift + len(raw)) // 6
        yield text[first:end]


def _patterns(secret: str) -> Iterator[str]:
    """Regular expressions for the secret, each of its characters in whatever spelling."""
    yield "".join(_spelled(character) for character in secret)
    for core in _base64_cores(secret):
        if len(core) >= SHORTEST:
            yield "".join(_ALPHABET_62.get(c) or re.escape(c) for c in core)


def _spelled(character: str) -> str:
    """One character: plain, percent-encoded (also twice), escaped as in JSON or HTML."""
    raw = character.encode(errors="surrogatepass")
    units = character.encode("utf-16-be", errors="surrogatepass").hex()
    escaped = "".join(rf"\\{{1,16}}u(?i:{units[i : i + 4]})" for i in range(0, len(units), 4))
    forms = [
        re.escape(character),
        "".join(f"%(?:25)*(?i:{byte:02x})" for byte in raw),
        escaped,
        rf"&\#0*{ord(character)};",
        rf"&\#[xX]0*(?i:{ord(character):x});",
    ]
    as_json = json.dumps(character, ensure_ascii=False)[1:-1]
    as_html = html.escape(character)
    forms += [re.escape(form) for form in (as_json, as_html) if form != character]
    match character:
        case " ":
            forms.append(r"\+")
        case "/":
            forms.append(r"\\{1,16}/")
        case '"' | "\\" | "'":
            forms.append(r"\\{1,16}" + re.escape(character))
    return f"(?:{'|'.join(forms)})"


def _parts(secret: str) -> Iterator[str]:
    """The secret, and what of it is a secret alone: not the scheme and the host of a pasted URL."""
    if len(secret) >= SHORTEST:
        yield secret
    rest = [secret]
    if "://" in secret:
        try:
            url = urlsplit(secret)
            rest = [url.path, url.fragment, url.username or "", url.password or ""]
            rest += [value for _, value in parse_qsl(url.query)]
        except ValueError:
            rest = [secret.partition("://")[2].partition("/")[2]]
    for piece in rest:
        yield from (part for part in piece.split("/") if len(part) >= SHORTEST_PART)


def sentence(text: str) -> str:
    """`text` as a sentence: other sentences can follow it."""
    text = text.strip()
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?…:" else ".")


def clean(text: str, longest: int = LONGEST) -> str:
    """`text` without what a database refuses, cut to `longest` characters."""
    kept = _UNKEPT.sub("�", text)
    return kept if len(kept) <= longest else kept[: longest - 1] + "…"


class Scrubber:
    """Takes the secrets of one connection out of whatever is to be kept."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        parts = sorted({part for s in secrets for part in _parts(s)}, key=len, reverse=True)
        found = [pattern for part in parts for pattern in _patterns(part)]
        self._reach = max([300, *(12 * len(part) for part in parts)])
        self._secrets = re.compile("|".join(found)) if found else None

    def text(self, text: str, longest: int = LONGEST) -> str:
        """`text` with every secret masked and cut to `longest` characters."""
        # Masked before it is cut: half a secret at the cut would no longer be recognised. Of a very
        # long text only the beginning is looked at, and its end, where half a secret may stand, is
        # left out.
        searched = 4 * longest + self._reach
        if len(text) > searched:
            masked = self.text(text[:searched], searched)[: -self._reach]
            return clean(masked + "…", longest)
        if self._secrets is not None:
            text = self._secrets.sub(MASK, text)
        text = _LOGIN.sub(f"://{MASK}@", text)
        # Headers before pairs, or the pair takes the scheme for the value and leaves the token.
        text = _HEADER.sub(lambda m: f"{m[1]}{MASK}", text)
        text = _BEARER.sub(lambda m: f"{m[1]} {MASK}", text)
        text = _PAIR.sub(lambda m: f"{m[1]}{m[2] or ''}{MASK}{m[2] or ''}", text)
        return clean(text, longest)

    def masked(self, text: str) -> str:
        """`text` without the connection's own secrets; what only reads like one is left alone."""
        return text if self._secrets is None else self._secrets.sub(MASK, text)

    def trace(self, error: BaseException) -> str:
        """An exception with its traceback, for a log."""
        return self.text("".join(traceback.format_exception(error)), 8000)

    def value(self, value: Any, depth: int = 6) -> Any:
        """A JSON value with secrets masked, by name and by content, and long texts cut.

        What lies deeper than `depth` is kept as a short text.
        """
        match value:
            case str():
                return self.text(value)
            case Mapping() if depth:
                return {
                    self.text(str(name), 100): MASK
                    if _SENSITIVE.search(str(name)) and isinstance(inner, str | bytes) and inner
                    else self.value(inner, depth - 1)
                    for name, inner in list(value.items())[:200]
                }
            case list() | tuple() if depth:
                return [self.value(inner, depth - 1) for inner in value[:200]]
            case None | bool():
                return value
            case int() | float():
                if isinstance(value, int) and value.bit_length() > 256:
                    return MASK  # no number of ours, and its digits may be more than Python prints
                shown = str(value)
                return value if self.text(shown, 100) == shown else MASK
            case _:
                return self.text(str(value), 200)
