"""Every page: the policy, no inline script or style, both languages, no secret (I15)."""

from __future__ import annotations

import ast
import logging
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.contrib.staticfiles import finders
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import translation
from django.views.debug import get_exception_reporter_class, get_exception_reporter_filter

from hub import cases, gate
from hub.models import Connection, Installation, Operation
from hub.models.operation import STATE_LABELS
from hub.panel import errors, words
from hub.states import State
from tests.hub import pages

ROOT = Path(__file__).resolve().parents[2]
SPANISH_STATES = {
    "pending": "pendiente",
    "running": "en ejecución",
    "sent": "enviado",
    "uncertain": "incierto",
    "accepted": "aceptado",
    "retry": "reintento necesario",
    "confirmed": "confirmado",
    "failed": "fallido",
    "review": "requiere revisión",
    "discarded": "descartado",
}


def pages_case(portal: Connection) -> int:
    """A case about the connection itself."""
    return cases.about_connection(portal.pk, "credential", "They refuse us.").pk


def addresses() -> list[str]:
    """Every page there is, each with something on it."""
    portal = pages.connection()
    rows = pages.one_of_each(portal)
    found = [
        "/admin/",
        "/admin/password_change/",
        f"/admin/cases/{pages_case(portal)}/close/",
        "/admin/hub/connection/add/",
        "/admin/hub/connection/add/?integration=bitrix24",
        "/admin/hub/tenant/add/",
        "/admin/hub/",
        f"/admin/connections/{portal.pk}/pause/",
        f"/admin/connections/{portal.pk}/retire/",
        "/admin/hub/operation/?state=all&q=7",
        *(reverse("admin:operation_story", args=[row.pk]) for row in rows.values()),
    ]
    for model in admin.site._registry:
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
        found.append(reverse(f"{name}_changelist"))
        row = model._default_manager.first()
        if row is not None:
            found.append(reverse(f"{name}_change", args=[row.pk]))
    return found


class _Page(HTMLParser):
    """What a page has inline, its ids, its headings, and fields without a label."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.ids: list[str] = []
        self.labelled: set[str] = set()
        self.fields: list[dict[str, str | None]] = []
        self.headings = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.inline += [f"{tag} {name}" for name in given if name == "style" or name[:2] == "on"]
        kind = given.get("type") or ""
        if tag == "style" or (tag == "script" and "src" not in given and "json" not in kind):
            self.inline.append(tag)
        if any((given.get(name) or "").startswith("javascript:") for name in ("href", "action")):
            self.inline.append(f"{tag} javascript:")
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if tag == "label" and given.get("for"):
            self.labelled.add(str(given["for"]))
        hidden = kind in ("hidden", "submit", "radio", "checkbox", "button", "search")
        if tag in ("input", "select", "textarea") and not hidden:
            self.fields.append(given)
        self.headings += tag == "h1"


@pytest.mark.django_db
def test_every_page_keeps_the_policy_and_has_nothing_inline(client: Client) -> None:
    client.force_login(pages.person("root", root=True))
    for address in addresses():
        response = client.get(address)
        assert response.status_code == 200, address
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        page = _Page(response.content.decode())
        assert page.inline == [], address
        assert len(page.ids) == len(set(page.ids)), address
        assert page.headings <= 2, address
        if "/auth/" in address:
            continue  # a date field of Django's own has one legend for two inputs
        unlabelled = [f for f in page.fields if f.get("id") not in page.labelled]
        assert not [f for f in unlabelled if "aria-label" not in f], address


@pytest.mark.django_db
def test_our_own_pages_load_no_script_they_need(client: Client) -> None:
    """Without scripts every button is still a form: nothing of ours asks for one."""
    for path in (ROOT / "templates").rglob("*.html"):
        assert "<script" not in path.read_text(), path
    assert not list((ROOT / "hub" / "static").rglob("*.js"))


@pytest.mark.django_db
@pytest.mark.parametrize("language", ["en", "es"])
def test_no_page_shows_a_secret_or_what_seals_it(client: Client, language: str) -> None:
    client.force_login(pages.person("root", root=True))
    from django.conf import settings

    keys = [*settings.HUB_CREDENTIAL_KEYS, settings.SECRET_KEY]
    for address in addresses():
        text = client.get(address, headers={"accept-language": language}).content.decode()
        assert pages.CANARY not in text, address
        assert not [key for key in keys if key in text], address
        assert "gAAAA" not in text, f"{address} shows a sealed credential"


# --- languages ------------------------------------------------------------------------------------


def test_states_have_the_labels_of_the_protocol() -> None:
    with translation.override("es"):
        assert {code: str(label) for code, label in STATE_LABELS} == SPANISH_STATES


@pytest.mark.django_db
def test_a_spanish_page_has_no_english_state(client: Client) -> None:
    client.force_login(pages.person("root", root=True))
    with translation.override("en"):
        english = {state: str(label) for state, label in STATE_LABELS}
    for address in addresses():
        text = client.get(address, headers={"accept-language": "es"}).content.decode()
        assert '<html lang="es"' in text, address
        shown = set(re.findall(r'hub-state-(\w+)">([^<]+)<', text))
        assert not [(state, label) for state, label in shown if label == english[state]], address
        if "/operations/" in address:
            assert shown, address


@pytest.mark.django_db
def test_the_page_of_an_operation_is_spanish_throughout(client: Client) -> None:
    client.force_login(pages.person("root", root=True))
    row = pages.one_of_each(pages.connection())[State.REVIEW]
    text = client.get(
        f"/admin/operations/{row.pk}/", headers={"accept-language": "es"}
    ).content.decode()
    for said in (
        "requiere revisión", "puede haberse hecho", "Consultar de nuevo", "Vincular", "Descartar",
        "Se encontró un objeto con nuestra referencia, pero difiere", "recomendado",
        "Se lee el objeto que usted nombre", "≠ distinto", "Lo que ocurrió, en orden",
        "luis decidió: Consultar de nuevo",
    ):  # fmt: skip
        assert said in text, said


@pytest.mark.django_db
def test_the_login_keeps_the_policy_and_offers_the_other_language(client: Client) -> None:
    response = client.get("/admin/login/")
    assert _Page(response.content.decode()).inline == []
    assert 'name="language" value="es"' in response.content.decode()


@pytest.mark.django_db
def test_the_language_is_chosen_by_a_form_and_kept(client: Client) -> None:
    client.force_login(pages.person("root", root=True))
    text = client.get("/admin/").content.decode()
    assert 'name="language" value="es"' in text
    response = client.post("/i18n/setlang/", {"language": "es", "next": "/admin/"}, follow=True)
    assert "Resumen" in response.content.decode()


def _catalogue(path: Path) -> list[tuple[str, list[str], bool]]:
    """Message, translations, and whether a translation is only a guess."""
    found = []
    for block in path.read_text().split("\n\n"):
        parts: dict[str, str] = {}
        name = ""
        for line in block.split("\n"):
            start = re.match(r'(msgid|msgid_plural|msgstr(?:\[\d\])?) (".*")$', line)
            if start:
                name = start[1]
                parts[name] = ast.literal_eval(start[2])
            elif line.startswith('"') and name:
                parts[name] += ast.literal_eval(line)
        if parts.get("msgid"):
            said = [text for key, text in parts.items() if key.startswith("msgstr")]
            found.append((parts["msgid"], said, "#, fuzzy" in block))
    return found


def test_everything_is_translated_with_its_placeholders() -> None:
    rows = _catalogue(ROOT / "hub/locale/es/LC_MESSAGES/django.po")
    assert len(rows) > 400
    hole = re.compile(r"%\(\w+\)[sdg]")
    for message, said, guessed in rows:
        assert not guessed, message
        for text in said:
            assert text, f"{message!r} is not translated"
            assert sorted(hole.findall(text)) == sorted(hole.findall(message)), message


@pytest.mark.parametrize("language", ["en", "es"])
def test_the_compiled_catalogue_is_the_written_one(language: str, tmp_path: Path) -> None:
    folder = ROOT / "hub/locale" / language / "LC_MESSAGES"
    from gettext import GNUTranslations

    with (folder / "django.mo").open("rb") as stream:
        compiled = GNUTranslations(stream)
    for message, said, _guessed in _catalogue(folder / "django.po"):
        if said[0]:
            plural = message if len(said) == 1 else None
            got = compiled.gettext(message) if plural else compiled.ngettext(message, message, 1)
            assert got == said[0], f"run manage.py compilemessages: {message!r} is out of date"


def test_every_text_of_the_code_is_in_the_catalogue() -> None:
    """The calls of gettext in Python; templates are covered by the Spanish pages."""
    known = {message for message, _said, _guessed in _catalogue(
        ROOT / "hub/locale/es/LC_MESSAGES/django.po"
    )}  # fmt: skip
    missing = []
    for path in sorted((ROOT / "hub").rglob("*.py")):
        tree = ast.parse(path.read_text())
        if "translation" not in path.read_text():
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id in ("_", "gettext", "gettext_lazy", "ngettext") and node.args:
                    given = node.args[0]
                    if isinstance(given, ast.Constant) and given.value not in known:
                        missing.append(f"{path.relative_to(ROOT)}:{node.lineno} {given.value!r}")
    assert not missing, "run manage.py makemessages, translate, compile:\n" + "\n".join(missing)


def test_every_text_of_a_template_is_in_the_catalogue() -> None:
    known = {message for message, _said, _guessed in _catalogue(
        ROOT / "hub/locale/es/LC_MESSAGES/django.po"
    )}  # fmt: skip
    asked = re.compile(r"""\{% translate (?:"([^"]+)"|'([^']+)')""")
    missing = [
        f"{path.name}: {text}"
        for path in (ROOT / "templates").rglob("*.html")
        for text in (one or two for one, two in asked.findall(path.read_text()))
        if text not in known
    ]
    assert not missing


REASON_IN_CODE = re.compile(r"(?:reason_code|code)(?:: str)? ?= ?[\"']([a-z_]+)[\"']")


def _texts(node: ast.AST | None) -> set[str]:
    found = ast.walk(node) if node is not None else ()
    return {
        one.value for one in found if isinstance(one, ast.Constant) and isinstance(one.value, str)
    }


def _reasons(trees: list[ast.Module]) -> set[str]:
    """What stands where a parameter `code` is given, what a variable `code` is set to, and what a
    table of codes holds.
    """
    places = {"Verdict": 1}
    for node in (one for tree in trees for one in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef):
            names = [one.arg for one in node.args.args if one.arg != "self"]
            if "code" in names:
                places[node.name] = names.index("code")
    found: set[str] = set()
    for node in (one for tree in trees for one in ast.walk(tree)):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=given):
                if name in places and len(given) > places[name]:
                    found |= _texts(given[places[name]])
            case ast.Assign(targets=[ast.Name(id="code")], value=value):
                found |= _texts(value)
            case ast.Assign(
                targets=[ast.Tuple(elts=[ast.Name(id="code"), *_])],
                value=ast.Tuple(elts=[first, *_]),
            ):
                found |= _texts(first)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(values=values)):
                if name.endswith("_CODES"):
                    found |= {text for one in values for text in _texts(one)}
    return found


def test_every_reason_the_engine_gives_has_words() -> None:
    sources = [path.read_text() for path in sorted((ROOT / "hub").glob("*.py"))]
    given = _reasons([ast.parse(source) for source in sources])
    given |= {code for source in sources for code in REASON_IN_CODE.findall(source)}
    assert len(given) > 60, "the search finds nothing"
    assert given - set(words.REASONS) == set()


# --- exception reports ----------------------------------------------------------------------------


def test_an_exception_report_has_no_values() -> None:
    request = RequestFactory().post(
        "/admin/", {"secret__webhook": pages.CANARY, "label": "-".join(("typed", "in"))}
    )
    request.COOKIES["sessionid"] = pages.CANARY
    request.user = User(username="ana")

    def deep(secret: str) -> None:
        kept = {"webhook": secret}
        raise KeyError(len(kept))

    try:
        deep(pages.CANARY)
    except KeyError as error:
        make: Any = get_exception_reporter_class(request)
        reporter = make(request, type(error), error, error.__traceback__)
        texts = [reporter.get_traceback_html(), reporter.get_traceback_text()]
    assert get_exception_reporter_filter(request).is_active(request)
    from django.conf import settings as real

    for text in texts:
        assert "deep" in text
        assert pages.CANARY not in text
        assert "typed-in" not in text
        assert real.SECRET_KEY not in text
        assert not [key for key in real.HUB_CREDENTIAL_KEYS if key in text]


def test_the_bare_address_leads_to_the_overview(client: Client) -> None:
    assert client.get("/").headers["Location"] == "/admin/"


# --- pages for what cannot be done ----------------------------------------------------------------


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the terminal would show."""
    format_it = logging.Formatter("{message}", style="{").format
    return [format_it(one) for one in caplog.records if one.levelno >= logging.INFO]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("address", "has", "code", "words_of_it"),
    [
        ("/admin/hub/operation/", (), "hub.view_operation", "Can view: operations"),
        ("/admin/operations/{row}/", (), "hub.view_operation", "Can view: operations"),
        ("/admin/hub/connection/add/", (), "hub.add_connection", "Can add: connections"),
        ("/admin/auth/user/", (), "auth.view_user", "Can view: users"),
        (
            "/admin/connections/{portal}/pause/", ("view_connection",), "hub.change_connection",
            "Can change: connections",
        ),
        (
            "/admin/cases/1/close/", ("view_reviewcase",), "hub.decide_case",
            "Can decide review cases",
        ),
    ],
)  # fmt: skip
def test_a_refusal_names_the_permission_and_whom_to_ask(
    client: Client, caplog: pytest.LogCaptureFixture, address: str, has: tuple[str, ...],
    code: str, words_of_it: str,
) -> None:  # fmt: skip
    portal = pages.connection()
    row = pages.operation(portal)
    pages.person("boss", root=True)
    client.force_login(pages.person("reader", *has))
    response = client.get(address.format(row=row.pk, portal=portal.pk))
    assert response.status_code == 403
    text = response.content.decode()
    assert words_of_it in text
    assert f"<code>{code}</code>" in text
    assert "boss" in text
    linked = '<a href="/admin/hub/operation/">Operations</a>' in text
    assert not linked, "a link that would be refused"
    assert "hub/hub.css" in text
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    assert _Page(text).inline == []
    told = _told(caplog)
    assert len(told) == 1, told
    assert told[0].startswith("Forbidden: /admin/")
    assert f"reader lacks {code}" in told[0]
    assert "Traceback" not in told[0]


@pytest.mark.django_db
def test_a_decision_that_is_refused_names_the_permission_it_takes(client: Client) -> None:
    row = pages.in_state(pages.connection(), State.REVIEW)
    client.force_login(pages.person("agent", "view_operation", "decide_case"))
    sent = {"action": "send_again", "reason": "x", "seen_state": "review", "seen_token": "0"}
    text = client.post(f"/admin/operations/{row.pk}/", sent).content.decode()
    assert "Can send an operation again whose fate is unknown" in text
    assert "<code>hub.send_again</code>" in text


@pytest.mark.django_db
def test_what_nobody_may_do_asks_for_no_permission(client: Client) -> None:
    client.force_login(pages.person("root", root=True))
    row = pages.operation(pages.connection())
    for address in ("delete", "change"):
        response = client.post(f"/admin/hub/operation/{row.pk}/{address}/", {"post": "yes"})
        assert response.status_code == 403
        text = response.content.decode()
        assert "Nobody may do this here" in text
        assert "You need this permission" not in text


@pytest.mark.django_db
def test_an_answer_that_was_meant_leaves_the_terminal_quiet(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    row = pages.in_state(pages.connection(), State.REVIEW)
    client.force_login(pages.person("root", root=True))
    sent = {"action": "discard", "seen_state": "review", "seen_token": "99"}
    assert client.post(f"/admin/operations/{row.pk}/", sent | {"reason": "x"}).status_code == 409
    assert client.post(f"/admin/operations/{row.pk}/", sent).status_code == 400
    assert _told(caplog) == []


@pytest.mark.django_db
@pytest.mark.parametrize("language", ["en", "es"])
def test_the_pages_of_errors_are_ours_in_both_languages(
    client: Client, rf: RequestFactory, monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    client.force_login(pages.person("root", root=True))
    told = {
        "en": ("Not found", "This form is too old", "This request cannot be read", "A defect"),
        "es": ("No encontrado", "Este formulario es demasiado antiguo",
               "Esta petición no se puede leer", "Un defecto"),
    }[language]  # fmt: skip
    in_language = {"accept-language": language}
    missing = client.get("/admin/operations/999/", headers=in_language)
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(username="root"))
    old = strict.post("/admin/connections/1/test/", headers=in_language)
    with translation.override(language):
        bad = errors.bad_request(rf.get("/"), ValueError())
        defect = errors.server_error(rf.get("/"))
    answers: list[Any] = [missing, old, bad, defect]
    for response, status, said in zip(answers, (404, 403, 400, 500), told, strict=True):
        assert response.status_code == status
        text = response.content.decode()
        assert said in text
        assert 'href="/admin/"' in text
        assert "<title>" in text
        assert _Page(text).inline == []
    assert "999" in missing.content.decode()


@pytest.mark.django_db
def test_a_stranger_is_told_that_nothing_is_there(client: Client) -> None:
    response = client.get("/nothing/here")
    assert response.status_code == 404
    assert "Nothing is at this address." in response.content.decode()
    assert "Log out" not in response.content.decode()


def test_a_defect_is_told_without_the_database(rf: RequestFactory) -> None:
    """No fixture gives this test a database: a query would fail it."""
    assert errors.server_error(rf.get("/")).status_code == 500
    assert errors.bad_request(rf.get("/"), ValueError()).status_code == 400


def test_a_defect_of_the_page_for_defects_still_answers(
    rf: RequestFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_given: Any, **_more: Any) -> str:
        raise RuntimeError("no template")

    monkeypatch.setattr(errors, "render_to_string", broken)
    assert errors.server_error(rf.get("/")).content == b"A defect of the hub. Its log says more."


@pytest.mark.django_db
def test_every_page_has_an_icon_of_our_own(client: Client) -> None:
    client.force_login(pages.person("root", root=True))
    for address in ("/admin/", "/admin/login/", "/admin/nothing/"):
        text = client.get(address, follow=True).content.decode()
        found = re.search(r'<link rel="icon" type="image/svg\+xml" href="([^"]+)">', text)
        assert found, address
        assert finders.find(found[1].removeprefix("/static/"))
    assert "script" not in (ROOT / "hub/static/hub/favicon.svg").read_text()


# --- narrow and foreign ---------------------------------------------------------------------------


def test_every_cell_of_a_table_is_named_where_the_table_becomes_cards() -> None:
    """At 390 px the heads of tables are gone: a cell says by itself what it is."""
    for path in (ROOT / "templates").rglob("*.html"):
        for table in re.findall(r'<table class="hub-table.*?</table>', path.read_text(), re.DOTALL):
            heads = table.count('<th scope="col">')
            cells = re.findall(r"<td[^>]*>(.{0,12})", table)
            bare = [
                cell for cell in cells
                if f"<td>{cell}" in table and not cell.startswith(("{% if cell.d", "{% translat"))
            ]  # fmt: skip
            assert not bare or not heads, f"{path.name}: {bare}"
            assert "hub-scroll" in path.read_text()


@pytest.mark.django_db
def test_what_the_engine_wrote_is_marked_as_english_on_a_spanish_page(client: Client) -> None:
    portal = pages.connection()
    row = pages.one_of_each(portal)[State.REVIEW]
    Operation.objects.filter(pk=row.pk).update(reason_text="No answer came.")
    other = pages.connection("paused")
    gate.pause(other.pk, "credential", "The remote refuses us.")
    Installation.objects.update(clock_note="The clock stepped by 9 s.")
    case = cases.about_connection(other.pk, "credential", "The remote refuses us.")
    client.force_login(pages.person("root", root=True))
    for address, sentences in (
        (f"/admin/operations/{row.pk}/", (
            "No answer came.", "The connection broke.", "Cleared up.", "One looks like it.",
        )),
        ("/admin/", ("The remote refuses us.", "The clock stepped by 9 s.")),
        (f"/admin/hub/operation/{row.pk}/change/", ("No answer came.",)),
        (f"/admin/hub/reviewcase/{case.pk}/change/", ("The remote refuses us.",)),
        (f"/admin/hub/attempt/{row.attempt_set.get().pk}/change/", ("The connection broke.",)),
        ("/admin/hub/evidence/", ("Cleared up.",)),
        ("/admin/hub/connection/", ("The remote refuses us.",)),
    ):  # fmt: skip
        spanish = client.get(address, headers={"accept-language": "es"}).content.decode()
        english = client.get(address, headers={"accept-language": "en"}).content.decode()
        for sentence in sentences:
            assert f'<span lang="en">{sentence}</span>' in spanish, address
            assert spanish.count(sentence) == spanish.count(f'lang="en">{sentence}<'), address
            assert sentence in english
            assert f'<span lang="en">{sentence}' not in english
    # What a decision came to was stored in the language of whoever decided.
    for address in (f"/admin/operations/{row.pk}/", "/admin/hub/decision/"):
        text = client.get(address, headers={"accept-language": "es"}).content.decode()
        assert "It is looked up at once." not in text
        assert "Se consulta de inmediato." in text


@pytest.mark.django_db
def test_what_a_person_wrote_is_not_marked_as_english(client: Client) -> None:
    portal = pages.connection()
    gate.pause(portal.pk, "person", "Se mudan de casa")
    client.force_login(pages.person("root", root=True))
    text = client.get("/admin/", headers={"accept-language": "es"}).content.decode()
    assert "Se mudan de casa" in text
    assert 'lang="en">Se mudan' not in text
