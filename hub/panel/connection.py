"""A connection's buttons: test, pause, resume, retire. Each is a POST; none of them writes the
settings.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_http_methods, require_POST

from hub import cases, gate, registry, remote
from hub.contract import (
    BadPayload,
    CallFailed,
    CallRefused,
    Checked,
    Finding,
    Steps,
    Write,
)
from hub.credentials import CannotOpen
from hub.http import Wire
from hub.indexes import unfinished
from hub.models import Connection, Gate, Installation, Operation
from hub.models.gate import Breaker, PauseKind
from hub.models.review import Subject
from hub.panel import words
from hub.panel.errors import Lacks
from hub.policy import degraded

TEST_CALL = 10.0
"""Seconds for one call of a connection test."""
TEST_WHOLE = 25.0
"""Seconds for a whole test: a web worker waits for it."""
COUNTED = 1_000


# --- what is shown --------------------------------------------------------------------------------


def gate_of(connection: Connection) -> Gate | None:
    """The gate of a connection, None while it has none."""
    try:
        return connection.gate
    except Gate.DoesNotExist:
        return None


OPENS: dict[str, Any] = {
    PauseKind.PERSON: gettext_lazy(
        "It goes on when somebody presses Resume on the page of the connection."
    ),
    PauseKind.CREDENTIAL: gettext_lazy(
        "To open it: enter a credential they accept on the page of the connection, press Test "
        "connection, then Resume."
    ),
    PauseKind.CERTIFICATE: gettext_lazy(
        "To open it: have their certificate renewed, or name its authority on the page of the "
        "connection, press Test connection, then Resume."
    ),
}
"""What a person does so that a paused connection goes on."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How the gate of a connection stands: in words, and what opens it when only a person can."""

    words: SafeString
    is_open: bool = False
    opens: str = ""


def standing(connection: Connection) -> Standing:
    """Whether operations pass, and if not, why, until when, and what a person would have to do."""
    if connection.retired_at is not None:
        return Standing(format_html("{}", _("retired")))
    row = gate_of(connection)
    now = timezone.now()
    if row is None:
        return _passes()
    if row.paused_at is not None and (row.paused_until is None or row.paused_until > now):
        return _paused(row)
    if row.breaker != Breaker.CLOSED:
        text = _("stopped by itself after %(count)d failures in a row; next probe %(time)s") % {
            "count": row.failures,
            "time": in_words(row.breaker_until) if row.breaker_until else "–",
        }
        return Standing(format_html("{}", text))
    if row.throttled_until is not None and row.throttled_until > now:
        text = _("they ask us to wait until %(time)s") % {"time": in_words(row.throttled_until)}
        return Standing(format_html("{}", text))
    return _passes()


def _passes() -> Standing:
    return Standing(format_html("{}", _("open")), is_open=True)


def _paused(row: Gate) -> Standing:
    # A person's words are in that person's language; the engine's own are in English.
    own = row.pause_kind != PauseKind.PERSON
    said = words.in_english(row.pause_reason) if own else row.pause_reason
    text = format_html("{}: {}", row.get_pause_kind_display(), said)
    if row.paused_until is None:
        return Standing(text, opens=str(OPENS.get(row.pause_kind, OPENS[PauseKind.PERSON])))
    until = _("(until %(time)s)") % {"time": in_words(row.paused_until)}
    return Standing(format_html("{} {}", text, until))


def gate_words(connection: Connection) -> SafeString:
    """How the gate stands, in words."""
    return standing(connection).words


def in_words(moment: Any) -> str:
    """A moment in the reader's language."""
    return date_format(timezone.localtime(moment), "DATETIME_FORMAT")


@dataclass(frozen=True, slots=True)
class ActionLine:
    """What one action is held to on this connection."""

    name: str
    safety: str
    means: str
    numbers: tuple[tuple[str, str], ...]
    origin: str
    lost: SafeString


def facts(connection: Connection, *, may_change: bool) -> dict[str, Any]:
    """What the connection's page shows beside its form."""
    row = gate_of(connection)
    lines, trouble = _action_lines(connection, row)
    stands = standing(connection)
    return {
        "hub_connection": connection,
        "gate": row,
        "gate_words": stands.words,
        "opens": stands.opens,
        "paused": row is not None and row.paused_at is not None,
        "blocked": row is not None and (row.paused_at is not None or row.breaker != Breaker.CLOSED),
        "action_lines": lines,
        "trouble": trouble,
        "assumptions": [
            {"code": code, "text": text, "where": where}
            for code, (text, where) in words.ASSUMPTIONS.items()
        ],
        "sole_writer": connection.sole_writer,
        "may_change": may_change,
        "pause_form": PauseForm(auto_id="id_pause_%s"),
        "retire_form": ReasonForm(auto_id="id_retire_%s"),
    }


def _action_lines(connection: Connection, row: Gate | None) -> tuple[list[ActionLine], str]:
    try:
        connector = remote.describe(connection)
    except registry.UnknownIntegration as error:
        return [], str(error)
    lost = row.degraded if row is not None else {}
    lines = []
    for name in sorted(connector.declared()):
        declared = registry.effective(connector, name, connection.numbers)
        if not isinstance(declared, Write):
            continue
        declared = degraded(declared, lost.get(name))
        numbers = tuple(
            (number, f"{words.number(value)} s" if value is not None else _("unknown"))
            for number in ("max_send", "max_exec", "index_lag", "key_ttl")
            for value in [getattr(declared, number)]
            if value is not None or number == "max_exec"
        )
        lines.append(
            ActionLine(
                name,
                declared.safety.value,
                str(words.CLASSES[declared.safety]),
                numbers,
                ", ".join(part for part in (declared.source, declared.dated) if part),
                words.in_english(str(lost.get(name, {}).get("why", ""))),
            )
        )
    return lines, ""


# --- the connection test --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tested:
    """What a connection test found, without secrets."""

    findings: tuple[Finding, ...]
    unproven: tuple[str, ...]
    account: str = ""
    other_account: bool = False
    """It speaks for another account than the connection: nothing it shows is about this one."""
    cut_off: bool = False
    """A call had no usable answer: what was not proven was not refuted either."""

    @property
    def ok(self) -> bool:
        return not self.other_account and all(finding.ok for finding in self.findings)


def is_other(reported: str, declared: str) -> bool:
    """Whether a test names another account than the connection stands for.

    An account may be declared without its host, as people name it: `acme` for
    `crm.example.com/acme`.
    """
    there, here = _account(reported), _account(declared)
    return bool(there) and there != here and not there.endswith(f"/{here}")


def _account(name: str) -> str:
    return name.strip().casefold().rpartition("://")[2].strip("/")


def run_test(connection: Connection) -> Tested:
    """Run the connector's check over the wire and write what it proves to the gate.

    Green: the actions are again what they declare. Unproven ones drop a class until a later test is
    green; but not when the test was cut off: a remote that is down for an hour would otherwise send
    every lost answer of that hour to a person. What another account shows counts for nothing.
    """
    mark = Installation.current().mark
    try:
        ready = remote.make(connection, mark=mark)
    except (registry.UnknownIntegration, CannotOpen) as error:
        return Tested((Finding(_("settings"), False, str(error)),), ())
    calls, failures = list[str](), list[str]()
    try:
        checked = asyncio.run(_check(ready, calls, failures))
    except TimeoutError:
        text = _("No end after %(seconds)d seconds: try again when it answers faster.") % {
            "seconds": int(TEST_WHOLE)
        }
        checked = Checked((Finding(_("time"), False, text),))
    except Exception as error:  # noqa: BLE001 - a foreign answer or a connector's bug is a finding
        text = (
            str(error) if isinstance(error, CallFailed | CallRefused | BadPayload) else repr(error)
        )
        checked = Checked((Finding(_("answer"), False, text),))
    _pay_for(ready, calls)
    account = ready.scrubber.text(checked.account, 200)
    tested = Tested(
        tuple(
            Finding(ready.scrubber.text(one.name, 100), one.ok, ready.scrubber.text(one.text, 500))
            for one in checked.findings
        ),
        checked.unproven,
        account,
        other_account=is_other(account, connection.account),
        cut_off=bool(failures),
    )
    if tested.ok:
        proven = [name for name in ready.connector.declared() if name not in tested.unproven]
        gate.restore_class(connection.pk, proven)
    why = next((one.text for one in tested.findings if not one.ok), _("not proven by the test"))
    for action in () if tested.cut_off or tested.other_account else tested.unproven:
        gate.degrade(connection.pk, action, "find", why)
    return tested


async def _check(ready: remote.Remote, calls: list[str], failures: list[str]) -> Checked:
    wire = Wire()
    try:
        async with asyncio.timeout(TEST_WHOLE):
            return await remote.read_through(
                ready, wire, _each(ready.connector.check(), calls, failures), max_send=TEST_CALL
            )
    finally:
        await wire.aclose()


def _each(steps: Steps[Checked], calls: list[str], failures: list[str]) -> Steps[Checked]:
    """The same steps; the limit group of each call, and each call without an answer, is noted."""
    try:
        call = next(steps)
        while True:
            calls.append(call.limit_group)
            try:
                answer = yield call
            except CallFailed as failure:
                failures.append(failure.text)
                call = steps.throw(failure)
            except CallRefused as refusal:
                call = steps.throw(refusal)
            else:
                call = steps.send(answer)
    except StopIteration as end:
        return end.value


def _pay_for(ready: remote.Remote, calls: list[str]) -> None:
    """Take the tokens of the calls that were made: the remote counted them, whoever made them."""
    wanted: dict[remote.RateLimit, int] = {}
    for group in calls:
        limit = ready.limit(group)
        if limit is not None:
            wanted[limit] = wanted.get(limit, 0) + 1
    if wanted:
        gate.take_tokens(wanted)


# --- views ----------------------------------------------------------------------------------------


class ReasonForm(forms.Form):
    """Why: for those who read it later."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=500,
        widget=forms.Textarea(attrs={"rows": 2}),
        error_messages={"required": gettext_lazy("Say why, for those who read it later.")},
    )


class PauseForm(ReasonForm):
    """Why, and until when if that is known."""

    until = forms.DateTimeField(
        label=gettext_lazy("Until (empty: until somebody resumes it)"),
        required=False,
        widget=forms.DateTimeInput(format="%Y-%m-%dT%H:%M", attrs={"type": "datetime-local"}),
    )

    def clean_until(self) -> Any:
        until = self.cleaned_data["until"]
        if until is not None and until <= timezone.now():
            raise forms.ValidationError(_("This moment is over; choose a later one."))
        return until


def _may_change(request: HttpRequest, pk: int) -> Connection:
    if not request.user.has_perm("hub.change_connection"):
        raise Lacks("hub.change_connection")
    return get_object_or_404(Connection.objects.select_related("tenant"), pk=pk)


def _back(connection: Connection) -> HttpResponseRedirect:
    return HttpResponseRedirect(reverse("admin:hub_connection_change", args=[connection.pk]))


def page(
    request: HttpRequest, template: str, connection: Connection, title: str, **more: Any
) -> TemplateResponse:
    """A page about a connection."""
    context = {
        **admin.site.each_context(request),
        "title": title,
        "hub_connection": connection,
        "opts": Connection._meta,
        **more,
    }
    return TemplateResponse(request, template, context)


def _log(request: HttpRequest, connection: Connection, text: str) -> None:
    LogEntry.objects.log_actions(
        request.user.pk or 0, [connection], CHANGE, change_message=text, single_object=True
    )


def _answered(request: HttpRequest, connection: Connection) -> None:
    """It works again, or somebody says so: the case about the connection has its answer."""
    cases.close_case(Subject.CONNECTION, connection.pk, by=request.user.get_username())


@require_POST
def test(request: HttpRequest, pk: int) -> HttpResponse:
    """Run the connection test and show each finding."""
    connection = _may_change(request, pk)
    gate.ensure(connection)
    tested = run_test(connection)
    paused = Gate.objects.filter(pk=connection.pk, paused_at__isnull=False).exists()
    if tested.ok and not paused:
        _answered(request, connection)
    _log(request, connection, _tested(connection, tested))
    stands = standing(Connection.objects.select_related("gate").get(pk=connection.pk))
    return page(
        request,
        "hub/panel/connection_test.html",
        connection,
        _("Connection test"),
        tested=tested,
        findings=[
            {"name": one.name, "ok": one.ok, "told": words.in_english(one.text)}
            for one in tested.findings
        ],
        gate_words=stands.words,
        opens=stands.opens,
        paused=paused,
    )


def _tested(connection: Connection, tested: Tested) -> str:
    if tested.other_account:
        return _("Tested: there the account is %(there)s, not %(here)s.") % {
            "there": tested.account,
            "here": connection.account,
        }
    return _("Tested: well.") if tested.ok else _("Tested: not well.")


@require_http_methods(["GET", "POST"])
def pause(request: HttpRequest, pk: int) -> HttpResponse:
    """Stop claiming and marking; what has left settles."""
    connection = _may_change(request, pk)
    form = PauseForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        gate.ensure(connection)
        gate.pause(
            connection.pk,
            PauseKind.PERSON,
            form.cleaned_data["reason"],
            by=request.user.get_username(),
            until=form.cleaned_data["until"],
        )
        _log(request, connection, _("Paused: %(why)s") % {"why": form.cleaned_data["reason"]})
        messages.success(request, _("Paused. What has already left settles; nothing new goes out."))
        return _back(connection)
    return page(
        request,
        "hub/panel/connection_reason.html",
        connection,
        _("Pause"),
        form=form,
        button=_("Pause"),
        effect=_("Nothing new is sent until it is resumed; what has already left settles."),
    )


@require_POST
def resume(request: HttpRequest, pk: int) -> HttpResponse:
    """Open a paused gate, and the breaker with it."""
    connection = _may_change(request, pk)
    if gate.resume(connection.pk):
        _answered(request, connection)
        _log(request, connection, _("Resumed."))
        messages.success(request, _("Resumed: what waited goes out, as fast as the limits allow."))
    else:
        messages.warning(request, _("It was not paused; nothing was changed."))
    return _back(connection)


@require_http_methods(["GET", "POST"])
def retire(request: HttpRequest, pk: int) -> HttpResponse:
    """Take a connection out of use, or bring it back; its history stays."""
    connection = _may_change(request, pk)
    back = connection.retired_at is not None
    form = ReasonForm(request.POST or None)
    waiting = 0 if back else _unfinished(connection)
    if request.method == "POST" and form.is_valid() and not waiting:
        Connection.objects.filter(pk=connection.pk).update(
            retired_at=None if back else timezone.now()
        )
        why = {"why": form.cleaned_data["reason"]}
        _log(
            request,
            connection,
            (_("Brought back: %(why)s") if back else _("Retired: %(why)s")) % why,
        )
        messages.success(request, _("Back in use.") if back else _("Retired. Its history stays."))
        return _back(connection)
    return page(
        request,
        "hub/panel/connection_reason.html",
        connection,
        _("Bring back") if back else _("Retire"),
        form=form,
        button=_("Bring back") if back else _("Retire"),
        effect=_("It takes new operations again.")
        if back
        else _("It takes no new operations. Nothing is deleted, and it can be brought back."),
        hindrance=ngettext(
            "%(count)s operation is not finished: let it settle, or discard it, first.",
            "%(count)s operations are not finished: let them settle, or discard them, first.",
            waiting,
        )
        % {"count": f"{waiting}+" if waiting >= COUNTED else waiting}
        if waiting
        else "",
    )


def _unfinished(connection: Connection) -> int:
    rows = Operation.objects.filter(pk__in=unfinished(), connection=connection)
    return rows.order_by().values("pk")[:COUNTED].count()
