"""What codes mean, in words for people: states, reasons, outcomes, assumptions, decisions.

Codes are stored, words are shown; so a page reads in the reader's language whatever was written
into the rows.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.apps import apps
from django.utils import translation
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timesince import timesince
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from hub.contract import SafetyClass
from hub.states import Outcome, Purpose, State

Words = dict[str, "str | Promise"]

STATE_MEANS: Words = {
    State.PENDING: _("It waits its turn; nothing to do."),
    State.RUNNING: _("It is being prepared; nothing has left in this attempt."),
    State.SENT: _("It was sent; there is no answer yet."),
    State.UNCERTAIN: _("It may have happened; the hub looks again by itself."),
    State.ACCEPTED: _("They took it and are working on it."),
    State.RETRY: _("The hub repeats it by itself; nothing to do."),
    State.CONFIRMED: _("It happened, and that was seen."),
    State.FAILED: _("It was refused and had no effect; its cause must be corrected."),
    State.REVIEW: _("The hub stopped; a person decides."),
    State.DISCARDED: _("It was closed without effect."),
}

REASONS: Words = {
    "absent": _("A first complete look found nothing; a second one must agree"),
    "absent_again": _("It was not found again after a repeat"),
    "accepted": _("They took it and are working on it"),
    "already_gone": _("It was already gone there"),
    "at_rest": _("Nothing follows: it is at rest"),
    "asked_to_look": _("A person asked to look again"),
    "body_lost": _("They answered, but the answer was cut off"),
    "busy": _("They cannot take it just now"),
    "changed_meanwhile": _("After a restore it is neither as last seen nor as meant"),
    "certificate": _("Their certificate is not valid"),
    "code_missing": _("The code of this integration or action is not installed"),
    "configuration": _("A setting on our side is wrong"),
    "confirmed": _("Their answer confirms it"),
    "conflict": _("It contradicts what is there"),
    "credential": _("They refuse our credential"),
    "denied": _("They do not allow us this action"),
    "drift": _("Same key, other payload"),
    "exhausted": _("It kept failing; the attempts or the time are used up"),
    "exists": _("It exists there already; it is read next"),
    "finished": _("Their job ended, for our version"),
    "follow_up_failed": _("It happened there, but what had to follow here failed"),
    "found": _("It was found there"),
    "found_before_repeat": _("Before a repeat it was found there"),
    "found_different": _("An object with our reference was found, but it differs"),
    "found_put_away": _("It was found, but it has been put away there"),
    "given_back": _("The worker gave it back before anything left"),
    "gone": _("It is gone there, as wanted"),
    "held_back": _("A possible late copy of an earlier request is waited for"),
    "inherited_doubt": _("An earlier operation of this object was closed in doubt"),
    "job_failed": _("Their job ended in an error"),
    "job_found": _("The job we had started was found"),
    "job_too_long": _("Their job has not ended in time"),
    "key_ignored": _("They did not honour our idempotency key"),
    "key_in_progress": _("They are still working on our key"),
    "key_reused": _("They know this key with another content"),
    "key_stores_error": _("They repeat an old error under our key; only a new key helps"),
    "key_used_up": _("Too late to repeat safely: the life of the key is over"),
    "lapsed": _("The worker's lease ran out"),
    "late_duplicate": _("A late answer names another object: possible duplicate"),
    "linked": _("A person linked it to an object there"),
    "look_given_back": _("The look was given back; it is repeated"),
    "looking": _("The look gave no usable answer; it is repeated"),
    "mapping_taken": _("That object is already tied to another record here"),
    "named_by_late_result": _("A late answer names an object; it is looked at"),
    "newer_there": _("A newer version is already there"),
    "no_look": _("There is no way to look it up"),
    "no_mapping": _("Nothing here is tied to an object there"),
    "no_result": _("Their job ended without naming a result"),
    "no_token": _("No rate token was free"),
    "not_storable": _("What came back holds a value that cannot be stored"),
    "not_reached": _("They could not be reached; nothing had left"),
    "other_version": _("The result belongs to another version"),
    "our_defect": _("A defect on our side; a developer must look"),
    "poison": _("Its worker died on it several times in a row"),
    "proxy_login": _("The HTTP proxy refuses our login"),
    "read_back": _("They say it is done; it is looked at before that is believed"),
    "read_failed": _("A preparing read failed; nothing had left"),
    "no_safe_repeat": _("It may have happened, and this action offers no safe repeat any more"),
    "reference_ignored": _("Their answer lacks our reference: the field was ignored"),
    "refused": _("They refuse the data"),
    "repeat_by_key": _("No usable answer; it is repeated with the same key"),
    "repeat_harmless": _("Not seen there; a repeat is harmless"),
    "restored": _("A backup was restored; it is looked at first"),
    "retried": _("A person decided to send it again with the same key"),
    "schema": _("The payload has a form this code does not know"),
    "sent_again": _("A person decided to send it again although it may have happened"),
    "several_found": _("Several objects there carry our reference"),
    "stale": _("A newer version has been sent"),
    "superseded": _("A newer one took its place"),
    "taken_over": _("A person took it out of the machine's hands"),
    "throttled": _("They ask us to go slower"),
    "undecided": _("It could not be found out in time whether it happened"),
    "unknown": _("No usable answer; it may have happened"),
    "unknown_job": _("They do not know the job any more"),
    "unusable": _("The connection cannot be used as it is set up"),
    "vanished": _("The object is gone there"),
    "version_conflict": _("It was changed there meanwhile"),
    "waiting": _("It waits its turn"),
    "withdrawn": _("A person discarded it"),
    "working": _("They are still working on it"),
}

PURPOSES: Words = {
    Purpose.SEND: _("Sending"),
    Purpose.CONSULT: _("Look"),
    Purpose.POLL: _("Asking about the job"),
}

OUTCOMES: Words = {
    Outcome.NOTHING_LEFT: _("no answer, and nothing had left"),
    Outcome.REFUSED_FOR_NOW: _("refused for now, without effect"),
    Outcome.REFUSED: _("refused for good, without effect"),
    Outcome.DENIED: _("not allowed, without effect"),
    Outcome.CONFLICT: _("a conflict with what is there"),
    Outcome.DONE: _("done"),
    Outcome.ACCEPTED: _("accepted, work goes on there"),
    Outcome.UNKNOWN: _("no usable answer: it may have been executed"),
    Outcome.LOOKED: _("looked"),
    Outcome.GIVEN_BACK: _("given back before anything left"),
}

TRIES: dict[tuple[str, str], str | Promise] = {
    (Purpose.CONSULT, Outcome.LOOKED): _("Looked it up there"),
    (Purpose.CONSULT, Outcome.GIVEN_BACK): _("Look given back; it is repeated"),
    (Purpose.POLL, Outcome.LOOKED): _("Asked about the job there"),
    (Purpose.POLL, Outcome.DONE): _("Asked about the job: it is done"),
    (Purpose.POLL, Outcome.GIVEN_BACK): _("Asking about the job given back; it is repeated"),
}
"""Purpose and outcome in one phrase, where one after the other would say a thing twice."""

EVIDENCE: Words = {
    "drift": _("Submitted again with other data"),
    "late_result": _("Late answer"),
    "sweep": _("Clearing up"),
    "follow_up_failed": _("Follow-up failed"),
    "marker_unknown": _("Marker of unknown fate"),
}

DECISIONS: Words = {
    "look_again": _("Look again"),
    "retry": _("Retry"),
    "send_again": _("Send again, although it may have happened"),
    "link": _("Link"),
    "discard": _("Discard"),
    "take_over": _("Take over"),
    "close": _("Close the case"),
    "correct": _("Correct the cause, then retry"),
}

ASSUMPTIONS: dict[str, tuple[str | Promise, str | Promise]] = {
    "A1": (
        _("A commit reported as done survives a crash."),
        _("deployment; manage.py check"),
    ),
    "A2": (
        _("The remote honours an idempotency key for its stated life (key_ttl)."),
        _("action: numbers below"),
    ),
    "A3": (
        _(
            "A request that left us is executed, if ever, within max_exec, "
            "and a search shows it within index_lag."
        ),
        _("action: numbers below"),
    ),
    "A4": (
        _(
            "After the last guard the first byte leaves within milliseconds, "
            "and the database's clock is not stepped."
        ),
        _("measured; deployment"),
    ),
    "A5": (
        _("Nobody else writes the same objects under our identity."),
        _("connection: checkbox below"),
    ),
}

CLASSES: Words = {
    SafetyClass.A: _("repeats are absorbed by a key"),
    SafetyClass.A_LOOK: _("repeats are absorbed by a key, and it can be looked up"),
    SafetyClass.B: _("conditional write: a repeat meets its own condition"),
    SafetyClass.B_PRIME: _("full state by id: a repeat adds nothing"),
    SafetyClass.C: _("can be found again by our reference"),
    SafetyClass.D: _("nothing to go by: a person decides"),
}

NUMBERS: Words = {
    "max_send": _("longest exchange (max_send), seconds"),
    "max_exec": _("executed, if ever, within (max_exec), seconds"),
    "index_lag": _("a search shows it within (index_lag), seconds"),
    "key_ttl": _("life of the idempotency key (key_ttl), seconds"),
}


DECIDED: Words = {
    "look_again": _("It is looked up at once."),
    "retry": _("It is sent again."),
    "send_again": _("It is sent again as a new operation."),
    "discard": _("It is closed; nothing is sent."),
    "take_over": _("The case is yours."),
    "close": _("The question is closed; nothing was sent or changed."),
}
"""What a decision that was carried out came to; a link names its object besides."""

FINAL_REASONS: dict[str, tuple[str, ...]] = {
    State.CONFIRMED: ("already_gone", "confirmed", "finished", "found", "gone", "linked"),
    State.DISCARDED: ("sent_again", "stale", "superseded", "withdrawn"),
}
"""The reasons an operation can be finished with."""

AT_THE_GATE = _("Nothing goes on here until its connection is open again.")
"""In the place of what a waiting state means, while only a person can open the connection."""

PERMISSIONS: Words = {
    "hub.decide_case": _("Can decide review cases"),
    "hub.send_again": _("Can send an operation again whose fate is unknown"),
}
_RIGHTS: dict[str, Promise] = {
    "view": _("Can view: %(what)s"),
    "add": _("Can add: %(what)s"),
    "change": _("Can change: %(what)s"),
    "delete": _("Can delete: %(what)s"),
}


def permission(code: str) -> str:
    """The words for a permission such as `hub.view_operation`; an unknown one as it is."""
    app, _dot, name = code.partition(".")
    right, _line, model = name.partition("_")
    if code in PERMISSIONS:
        return str(PERMISSIONS[code])
    try:
        what = apps.get_model(app, model)._meta.verbose_name_plural
    except (LookupError, ValueError):
        return code
    return str(_RIGHTS[right]) % {"what": what} if right in _RIGHTS else code


def ago(since: datetime, now: datetime, depth: int = 2) -> str:
    """The time between two moments: "12 seconds", "5 minutes", "2 hours, 3 minutes"."""
    length = max(timedelta(0), now - since)
    if length >= timedelta(minutes=1):
        return timesince(now - length, now, depth=depth)
    seconds = int(length.total_seconds())
    return ngettext("%(count)d second", "%(count)d seconds", seconds) % {"count": seconds}


def in_english(text: str) -> SafeString:
    """A sentence the engine or a connector wrote, marked as English on every other page."""
    if not text or (translation.get_language() or "en").partition("-")[0] == "en":
        return format_html("{}", text)
    return format_html('<span lang="en">{}</span>', text)


def tried(purpose: str, outcome: str) -> str:
    """What an attempt was for and how it ended; one without an outcome is under way."""
    if (purpose, outcome) in TRIES:
        return str(TRIES[purpose, outcome])
    ended = OUTCOMES.get(outcome, _("under way"))
    return f"{PURPOSES.get(purpose, purpose)}: {ended}"


def decided(action: str, remote_ref: str) -> str:
    """What a decision came to that was carried out; empty when there are no words for it."""
    if action == "link":
        return str(_("It is confirmed with object %(ref)s.")) % {"ref": remote_ref}
    return str(DECIDED.get(action, ""))


def number(value: float | str) -> str:
    """A number as a person writes it, no ".0" and no exponent; what is none, as it is."""
    try:
        value = float(value)
    except (TypeError, ValueError):
        return str(value)
    return f"{value:.6f}".rstrip("0").rstrip(".")


def reason(code: str) -> str:
    """The words for a reason code; an unknown code is shown as it is."""
    return str(REASONS.get(code, code))


def decision(code: str) -> str:
    """The words for a decision or an advice."""
    return str(DECISIONS.get(code, code))


def state_means(state: str, *, doubt: bool) -> str:
    """What a state means for the reader, doubt included."""
    if state == State.DISCARDED and doubt:
        return str(_("It was closed; nobody knows whether it happened."))
    return str(STATE_MEANS.get(state, ""))
