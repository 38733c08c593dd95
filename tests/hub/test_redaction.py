"""No secret survives in what is kept, whatever its spelling and whatever surrounds it (I15)."""

import base64
import html
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.redaction import LONGEST, MASK, Scrubber, clean, spellings

CANARY = 'k9/Zr+ä"q é&canary\\7'
"""Something of everything that is escaped somewhere."""


def lower_hex(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


SPELLED: dict[str, Callable[[str], str]] = {
    "plain": str,
    "URL": lambda s: quote(s, safe=""),
    "URL, slashes kept": quote,
    "URL, lower-case hexadecimal": lower_hex,
    "URL, twice": lambda s: quote(quote(s, safe=""), safe=""),
    "form": quote_plus,
    "form body": lambda s: urlencode({"a": "b", "key": s, "c": "d"}),
    "JSON": lambda s: json.dumps({"key": s}),
    "JSON, not ASCII": lambda s: json.dumps({"key": s}, ensure_ascii=False),
    "JSON, upper-case hexadecimal": lambda s: json.dumps(s).replace("\\u00e", "\\u00E"),
    "JSON, slashes escaped": lambda s: json.dumps(s).replace("/", "\\/"),
    "JSON in JSON": lambda s: json.dumps(json.dumps({"key": s})),
    "HTML": html.escape,
    "Python": repr,
}
SECRETS = [CANARY, "planted-secret-word", "0123456789", "ab/cd+EF==", "пароль-тайна", "🔑🔑key"]


def survives(text: str, secret: str) -> bool:
    return any(form in text for form in spellings(secret))


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("spelled", SPELLED)
def test_a_secret_is_masked_in_every_spelling(secret: str, spelled: str) -> None:
    told = f"before {SPELLED[spelled](secret)} after"
    kept = Scrubber([secret]).text(told)
    assert MASK in kept
    assert not survives(kept, secret)
    assert kept.startswith("before ")
    assert kept.endswith(" after")
    assert SPELLED[spelled](secret) not in kept


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("before", range(7))
@pytest.mark.parametrize("after", range(4))
def test_a_secret_inside_a_base64_text_is_masked(
    secret: str, encode: Callable[[bytes], bytes], before: int, after: int
) -> None:
    raw = secret.encode()

    def encoded(filler: bytes) -> str:
        return encode(filler * before + raw + filler * after).decode()

    told = encoded(b"u")
    kept = Scrubber([secret]).text(told)
    assert MASK in kept
    # What is left of it, put back in its place, says no three bytes of the secret.
    head, _, tail = kept.partition(MASK)
    missing = len(told) - len(head) - len(tail)
    assert missing >= len(raw) * 8 // 6 - 2
    assert told.startswith(head)
    assert told.endswith(tail)
    assert Scrubber([secret]).text(quote(told, safe="")).count(MASK) >= 1


@settings(max_examples=300, deadline=None)
@given(
    secret=st.text(min_size=6, max_size=40),
    before=st.text(max_size=30),
    after=st.text(max_size=30),
    spelled=st.sampled_from(sorted(SPELLED)),
)
def test_whatever_surrounds_it_a_secret_never_survives(
    secret: str, before: str, after: str, spelled: str
) -> None:
    told = before + SPELLED[spelled](secret) + after
    scrubber = Scrubber([secret])
    kept = scrubber.text(told, 10_000)
    assert clean(secret) not in kept
    assert not survives(kept, secret)
    assert not survives(json.dumps(scrubber.value({"deep": [{"er": told}], told: 1})), secret)


@settings(max_examples=100, deadline=None)
@given(before=st.binary(max_size=20), after=st.binary(max_size=20))
def test_whatever_surrounds_it_in_base64_it_never_survives(before: bytes, after: bytes) -> None:
    raw = b"planted-secret-word"
    kept = Scrubber([raw.decode()]).text(base64.b64encode(before + raw + after).decode(), 10_000)
    for cut in range(4):
        try:
            assert raw not in base64.b64decode(kept[cut:] + "===")
        except ValueError:
            continue
    assert MASK in kept


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=2_000))
def test_what_is_kept_can_be_stored(text: str) -> None:
    kept = Scrubber().text(text)
    kept.encode()
    assert "\x00" not in kept
    assert len(kept) <= LONGEST


WEBHOOK = "https://portal.example.com/rest/17/q8w7e6r5t4y3u2i1/"


def test_of_a_pasted_address_only_what_is_secret_is_masked() -> None:
    scrubber = Scrubber([WEBHOOK])
    told = "https://portal.example.com answered 503; https: was used, host portal.example.com"
    assert scrubber.text(told) == told
    assert "q8w7e6r5t4y3u2i1" not in scrubber.text("GET /rest/17/q8w7e6r5t4y3u2i1/crm.item.add")
    assert WEBHOOK not in scrubber.text(f"cannot reach {WEBHOOK}crm.item.add")


def test_logins_and_query_values_of_a_pasted_address_are_masked() -> None:
    scrubber = Scrubber(["https://joanne:hunter22@api.example.com/v1?key=abcdef123&x=1"])
    for part in ("hunter22", "joanne", "abcdef123"):
        assert part not in scrubber.text(f"it said {part} twice")
    assert "api.example.com" in scrubber.text("api.example.com is down")


def test_an_address_that_is_none_does_no_harm() -> None:
    scrubber = Scrubber(["https://[broken/q8w7e6r5t4"])
    assert "q8w7e6r5t4" not in scrubber.text("saw q8w7e6r5t4")


@pytest.mark.parametrize(
    "told",
    [
        "Authorization: Bearer {}",
        "authorization: token {}",
        "Proxy-Authorization: Basic {}",
        "'Authorization': 'Bearer {}'",
        '{{"authorization": "Bearer {}"}}',
        "Cookie: sid={}; theme=dark",
        "Set-Cookie: sid={}",
        "sent Bearer {} to them",
        "password={}",
        "PASSWORD: {}",
        "passwd = {}",
        '{{"access_token": "{}"}}',
        "{{'refresh_token': '{}'}}",
        "client_secret={}&x=1",
        "app_secret={}",
        "X-Api-Key: {}",
        "apikey={}",
        "auth[application_token]={}",
        "auth%5Bapplication_token%5D={}",
        "postgresql://hub:{}@127.0.0.1:5432/hub",
        "http://:{}@proxy.example.com:3128",
    ],
)
def test_what_reads_like_a_credential_is_masked_though_nobody_knows_it(told: str) -> None:
    kept = Scrubber().text(told.format("Pl4nted-s3cret"))
    assert "s3cret" not in kept
    assert MASK in kept


def test_a_quoted_password_may_hold_blanks() -> None:
    assert "horse" not in Scrubber().text('"password": "correct horse, battery"')


@pytest.mark.parametrize(
    "told",
    [
        "HTTP 400: the field NAME is required",
        "https://portal.example.com/crm/contact/details/41/",
        "The token bucket is empty",
        "author: Anna",
        "2026-09-21T15:36:10+03:00 version=7 state=sent",
        "",
    ],
)
def test_plain_words_are_left_alone(told: str) -> None:
    assert Scrubber(["planted-secret-word"]).text(told) == told


def test_short_secrets_are_masked_and_shorter_ones_would_mask_everything() -> None:
    assert Scrubber(["7q8w"]).text("code 7q8w") == f"code {MASK}"
    assert Scrubber(["a", ""]).text("banana") == "banana"


def test_a_secret_is_masked_before_the_text_is_cut() -> None:
    told = "x" * (LONGEST - 8) + "planted-secret-word"
    kept = Scrubber(["planted-secret-word"]).text(told)
    assert "plant" not in kept
    assert len(kept) <= LONGEST


def test_the_longest_of_two_secrets_is_masked_whole() -> None:
    assert Scrubber(["abcdef", "abcdef-ghijkl"]).text("abcdef-ghijkl") == MASK


def test_values_are_masked_by_name_and_by_content_at_any_depth() -> None:
    scrubber = Scrubber(["planted-secret-word", "1234567890"])
    value = {
        "password": "anything",
        "Api-Key": "x",
        "signature": b"raw",
        "note": "it is planted-secret-word",
        "planted-secret-word": "as a name",
        "number": 1234567890,
        "raw": b"planted-secret-word",
        "empty_token": "",
        "list": [["planted-secret-word"]],
    }
    nested: object = value
    for _ in range(9):
        nested = {"in": [nested]}
    for one in (value, nested):
        kept = json.dumps(scrubber.value(one), ensure_ascii=False)
        assert "planted-secret-word" not in kept
        assert "1234567890" not in kept
        assert "anything" not in kept or one is nested
    kept_value = scrubber.value(value)
    assert kept_value["password"] == kept_value["Api-Key"] == kept_value["signature"] == MASK
    assert kept_value["empty_token"] == ""


def test_values_stay_what_they_are() -> None:
    value = {"a": [1, 2.5, True, None, "text"], "token": 7, "lease_token": 41}
    assert Scrubber(["planted-secret-word"]).value(value) == value
    assert Scrubber().value(10**5000) == MASK
    assert len(Scrubber().value(list(range(500)))) == 200


def test_what_a_database_refuses_is_replaced() -> None:
    assert clean("a\x00b\ud800c\x1f") == "a�b�c�"
    assert clean("line\r\n\tline") == "line\r\n\tline"
    assert clean("x" * 20, 10) == "x" * 9 + "…"
