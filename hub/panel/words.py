"""What codes mean, in words for people: states, reasons, outcomes, assumptions, decisions.

Codes are stored, words are shown; so a page reads in the reader's language whatever was written
into the rows.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.apps import apps
from django.utils import translation
from django.utils.formats import date_format
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timesince import timesince
from django.utils.timezone import localtime
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from hub.advice import Advised, Fact, Happened, Strength, Value, Verb
from hub.candidates import Check
from hub.contract import SafetyClass
from hub.reasons import Reason, reason_of
from hub.states import Outcome, Purpose, State
from hub.urgency import Share, Urgency

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
    "late_effect": _("It was discarded, and a late answer says it happened"),
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
    "stated": _("A person stated that it was done"),
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
    "confirm": _("Confirm as done"),
    "not_same": _("It is not this one"),
    "may_be": _("It may be this one after all"),
    "take": _("Take the case"),
    "note": _("Write a note"),
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
    "confirm": _("It counts as done, on your word."),
    "not_same": _("It is hidden; that proves nothing."),
    "may_be": _("It is shown again."),
    "note": _("The note is kept."),
    "close": _("The question is closed; nothing was sent or changed."),
}
"""What a decision that was carried out came to; a link names its object besides."""

FINAL_REASONS: dict[str, tuple[str, ...]] = {
    State.CONFIRMED: ("already_gone", "confirmed", "finished", "found", "gone", "linked", "stated"),
    State.DISCARDED: ("sent_again", "stale", "superseded", "withdrawn"),
}
"""The reasons an operation can be finished with."""

AT_THE_GATE = _("Nothing goes on here until its connection is open again.")
"""In the place of what a waiting state means, while only a person can open the connection."""

PERMISSIONS: Words = {
    "hub.decide_case": _("Can decide review cases"),
    "hub.send_again": _("Can send an operation again whose fate is unknown"),
    "hub.work_case": _("Can look again, note, take and assign"),
    "hub.judge_case": _("Can decide cases of judgement and confirm as done"),
    "hub.discard_doubt": _("Can discard what may have happened"),
    "hub.pause_connection": _("Can test, pause and resume connections"),
    "hub.see_values": _("Can show personal values"),
    "hub.see_technical": _("Can see the raw technical view"),
    "hub.export_history": _("Can export decisions and history"),
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


# --- the advice of the table ----------------------------------------------------------------------

STRENGTHS: Words = {
    Strength.SAFE: _("safe"),
    Strength.LIKELY: _("likely"),
    Strength.JUDGEMENT: _("your judgement"),
}

HAPPENED: Words = {
    Happened.NO: _("○ No"),
    Happened.MAYBE: _("◐ Maybe"),
    Happened.STARTED: _("◔ Started there"),
    Happened.YES: _("● Yes"),
}

CASE_REASONS: Words = {
    Reason.UNKNOWN_OUTCOME: _("We could not find out whether it happened"),
    Reason.NO_LOOKUP: _("No answer, and no way to look it up"),
    Reason.KEY_EXPIRED: _("Too late to repeat safely"),
    Reason.MANY_CANDIDATES: _("Several records could be it"),
    Reason.NOT_PROVEN: _("One record looks like it"),
    Reason.PAYLOAD_CHANGED: _("Same action, other data"),
    Reason.VERSION_MOVED: _("The source changed meanwhile"),
    Reason.MAPPING_CONFLICT: _("That record is already linked to another"),
    Reason.OTHER_VERSION: _("The result belongs to another version"),
    Reason.OWNERSHIP: _("Two systems disagree; a person chooses"),
    Reason.PERMISSION: _("They refuse us this action"),
    Reason.VALIDATION: _("They refuse the data"),
    Reason.CONFIGURATION: _("A setting on our side is wrong"),
    Reason.REMOTE_CONFLICT: _("Somebody changed it there at the same time"),
    Reason.ATTEMPTS_USED: _("It kept failing"),
    Reason.DIFFERENCE: _("The record differs there"),
    Reason.DUPLICATES: _("It exists more than once there"),
    Reason.CONTRACT_BROKEN: _("The system did not do what it promises"),
    Reason.CONNECTION_STOPPED: _("The system refuses our access"),
    Reason.INTERNAL: _("A fault of the hub; a developer must look"),
}

ADVICE: dict[str, str | Promise] = {
    "1": _(
        "The same action came with other data. The first stands; send the other as new if it is "
        "wanted."
    ),
    "2": _("In hand until %(time)s. Wait."),
    "3": _("It happened %(n)s times. Choose the record to keep."),
    "4": _(
        "Record %(id)s is ours but linked to %(other)s. Do not send; find out which link is right."
    ),
    "4 own": _(
        "Record %(id)s is ours, but ours is linked to %(own)s. Do not send; find out which link "
        "is right."
    ),
    "5": _("It happened, and somebody deleted %(id)s there."),
    "6": _("Result of version %(a)s; we need %(b)s. Do not publish it."),
    "7": _("%(id)s is ours, but %(n)s of our fields differ there. Compare."),
    "8": _("It happened: %(id)s carries our reference. Link it."),
    "9": _("It happened: link %(id)s; version %(version)s is sent next."),
    "10": _("A newer version replaces all of this."),
    "11": _("Nothing was done there. Retry; if %(system)s is stopped it waits until it answers."),
    "12": _("%(system)s refused: “%(words)s”. Correct the cause."),
    "13": _("Too early to tell. Look again."),
    "13 time": _("Too early to tell. Look again from %(time)s."),
    "14": _("The record there already shows our values."),
    "15": _("The record there is unchanged. Retry."),
    "16": _("Somebody else changed it there. Compare first."),
    "17": _(
        "%(id)s has no reference of ours but looks like it (%(n)s of %(m)s fields). Compare; it "
        "may have been entered by hand."
    ),
    "18": _("Records that could be it: %(n)s. Compare."),
    "19": _("A repeat changes nothing there. Retry."),
    "19 until": _("%(system)s recognises a repeat until %(until)s. Retry."),
    "20": _("It did not happen: complete looks that found nothing: %(n)s. Retry."),
    "21": _("Probably not there, but not settled: %(missing)s. If it is, there will be two."),
    "22": _("From here nobody can tell. Ask there, then mark the result."),
    "22 contact": _("From here nobody can tell. Ask %(contact)s, then mark the result."),
    "23": _("%(ours)s and %(theirs)s disagree on %(field)s."),
    "24": _("%(field)s differs there and %(owner)s owns it."),
    "25": _(
        "%(system)s refuses our access since %(time)s. Waiting changes, which go by themselves "
        "afterwards: %(n)s."
    ),
    "26": _("No rule fits; the facts are below."),
}
"""The sentence of each row; a second word names the fact that asks for another wording."""

ADVICE_SHORT: dict[int, str | Promise] = {
    1: _("Discard, or leave it"),
    2: _("Wait"),
    3: _("Choose the record to keep"),
    4: _("Find the right link"),
    5: _("Restore it there and link it, or discard"),
    6: _("Do not publish"),
    7: _("Compare, then link"),
    8: _("Link"),
    9: _("Link"),
    10: _("Discard: a newer one goes"),
    11: _("Retry"),
    12: _("Correct the cause"),
    13: _("Look again"),
    14: _("Confirm as done"),
    15: _("Retry"),
    16: _("Compare"),
    17: _("Compare, probably link"),
    18: _("Compare"),
    19: _("Retry"),
    20: _("Retry"),
    21: _("A person may send anyway"),
    22: _("Ask there"),
    23: _("Choose the value"),
    24: _("Choose the owner's value"),
    25: _("Repair the access"),
    26: _("Ask a senior"),
}
"""Each row in a word or two, where no button carries it out."""

CHECKS: Words = {
    Check.PAGES: _("not every page was read"),
    Check.ACCOUNT: _("it is not certain that the right account was asked"),
    Check.REFERENCE: _("our reference can get lost there"),
    Check.EXECUTION: _("it was too early for a late execution, or how late that can be is unknown"),
    Check.INDEX: _("their search may not show it yet, or how late it does is unknown"),
    Check.TWICE: _("it was not looked for twice"),
    Check.CLOCK: _("our clock made a jump"),
    Check.SET_ASIDE: _("a person set a look-alike aside, which proves nothing"),
}
"""What is missing to be sure that it is not there."""

FACTS: Words = {
    "data_changed": _("The data differs from what was first sent under this key"),
    "in_hand": _("A worker has it until %(time)s"),
    "doubt": _("It was sent, and no usable answer came"),
    "nothing_left": _("Nothing is there of it"),
    "for_now": _("They refused it for the moment, without effect"),
    "for_good": _("It was refused or cannot be sent: %(words)s"),
    "no_look": _("%(system)s offers no way to look this up"),
    "look_none": _("It was not looked up since it was sent"),
    "look_failed": _("The last look failed, which is no answer"),
    "look_incomplete": _("The last look was not complete"),
    "look_too_early": _("The last look came too early to count"),
    "look_good": _("It was looked up; looks since it was sent: %(n)s"),
    "carries_ours": _("%(id)s carries our reference"),
    "returned": _("They named %(id)s in an answer"),
    "different": _("Fields of ours that differ in %(id)s: %(n)s"),
    "equal": _("Every field we own is equal in %(id)s"),
    "linked": _("%(id)s is linked to %(other)s"),
    "own_link": _("Our record is linked to %(id)s"),
    "free": _("%(id)s is linked to nothing else"),
    "put_away": _("%(id)s lies in the %(place)s there"),
    "looks_like": _("%(id)s has no reference of ours; %(n)s of %(m)s fields are equal"),
    "existed_before": _("%(id)s was made before we sent anything"),
    "by_somebody": _("%(id)s was made too late to be ours: probably entered by somebody else"),
    "refused": _("A person said that %(id)s is not it, which proves nothing"),
    "carries_other": _("%(id)s carries the reference of %(other)s"),
    "duplicates": _("Objects this operation is known to have made: %(n)s"),
    "result_version": _("The result is of version %(a)s, and %(b)s is needed"),
    "read_equal": _("Read back, it is as we mean it"),
    "read_before": _("Read back, it is as it was before"),
    "read_neither": _("Read back, it is neither as before nor as we mean it, or is gone"),
    "key_alive": _("They recognise a repeat until %(time)s"),
    "harmless": _("A repeat adds nothing there, whenever it comes"),
    "key_gone": _("They recognise a repeat no longer, or not for certain: until %(time)s"),
    "check_missing": _("Not certain that it is not there: %(check)s"),
    "job_lost": _("They do not know the job any more"),
    "newer": _("Version %(version)s of the same record waits behind it"),
    "overtaken": _("Version %(version)s of the same record has been sent already"),
    "asked": _("A rule asks a person about %(field)s"),
    "difference": _("%(field)s differs; its owner is %(owner)s"),
    "access": _("Access refused since %(time)s; changes that wait: %(n)s"),
}

WOULD_CHANGE: Words = {
    "wanted": _("the other data, once it is submitted as a new version"),
    "lease": _("the end of the work in hand"),
    "one_withdrawn": _("one of them turning out not to be ours"),
    "link_freed": _("the other link being removed"),
    "restored_there": _("the record being restored there"),
    "version_wanted": _("that version being wanted after all"),
    "fields_equal": _("the fields becoming equal"),
    "second_proven": _("a second record with our reference"),
    "linked_meanwhile": _("somebody linking it to another record"),
    "newer_gone": _("the newer version being discarded"),
    "trace": _("any sign that it did happen"),
    "corrected": _("the cause being corrected"),
    "good_look": _("a complete look that is late enough"),
    "read_differs": _("another look that shows other values"),
    "read_equal": _("the record showing our values"),
    "second_like": _("a second look-alike"),
    "reference_seen": _("a record that carries our reference"),
    "key_out": _("the end of the time in which a repeat is harmless"),
    "check_made": _("the missing check being made"),
    "told_there": _("somebody there who knows"),
    "owner_named": _("a rule that names the owner"),
    "values_equal": _("the values becoming equal"),
    "access_open": _("a test of the connection that succeeds"),
    "more_known": _("one more fact"),
}

VERBS: dict[str, tuple[str | Promise, str | Promise]] = {
    Verb.LOOK: (_("Look again"), _("Asks only; changes nothing there.")),
    Verb.TAKE_OVER: (_("Take over"), _("The hub stops checking; you decide.")),
    Verb.RETRY: (_("Retry"), _("Sends the same data again, once.")),
    Verb.LINK: (_("Link to this"), _("From now on %(here)s is %(there)s.")),
    Verb.NOT_SAME: (_("It is not this one"), _("Hides it; proves nothing.")),
    Verb.CONFIRM: (_("Confirm as done"), _("Marks it done on your word.")),
    Verb.DISCARD: (_("Discard"), _("Will not be sent.")),
    Verb.CHOOSE: (_("Choose the value"), _("%(field)s becomes %(value)s in %(systems)s.")),
    Verb.SEND_ANYWAY: (_("Send anyway"), _("May create a second one.")),
    Verb.TAKE: (_("Take"), _("No effect on the exchange.")),
    Verb.NOTE: (_("Note"), _("No effect on the exchange.")),
}
"""Label and effect line of each verb."""

WHY_NOT: dict[str, str | Promise] = {
    "retry early": _(
        "It may already be there; a second sending could duplicate it. Look first; a look counts "
        "from %(time)s."
    ),
    "retry found": _("It already happened: record %(id)s."),
    "retry look-alike": _("%(id)s looks like it; decide about it first."),
    "retry changed": _("These are no longer the data first sent. Send as new."),
    "retry key": _("%(system)s stopped recognising a repeat at %(time)s. Look first."),
    "retry hub": _("The hub does it by itself at %(time)s."),
    "in hand": _("It is being sent; possible again at %(time)s at the latest."),
    "checking": _("The hub is still checking; next look %(time)s. Take over to decide yourself."),
    "link none": _("No possible record yet. Look again, or type its number."),
    "link taken": _("%(id)s is linked to %(other)s."),
    "not same proven": _("It carries our reference: it is ours."),
    "no look": _("%(system)s offers no way to look this up."),
    "confirm create": _("A new record must be named: choose it or type its number."),
    "discard done": _("It is done; undo it there, or send a correction."),
    "discard maybe": _("It may have happened; let the hub find out, or take over."),
    "right": _("Needs the right “%(right)s”. Ask %(who)s."),
    "bulk": _("Each of these needs a look."),
}
"""Why a button cannot be pressed; each names a condition and, where time matters, a time."""

_URGENT: dict[str, str | Promise] = {
    Share.HARM: _("harm (%(points)d)"),
    Share.IRREVERSIBLE: _("cannot be undone (%(points)d)"),
    Share.KEY_LIFE: _("safe repeat runs out (%(points)d)"),
    Share.AGE: _("waiting (%(points)d)"),
}


def strength(of: Strength) -> str:
    """How far an advice may be followed."""
    return str(STRENGTHS[of])


def case_reason(code: str) -> str:
    """Why a case stands before a person, in one of the panel's reasons; else the code's words."""
    found = reason_of(code)
    return str(CASE_REASONS[found]) if found is not None else reason(code)


def advice(advised: Advised) -> str:
    """The sentence of an advice."""
    params = dict(advised.params)
    named = (f"{advised.row} {name}" for name, value in params.items() if value != "")
    key = next((one for one in named if one in ADVICE), str(advised.row))
    if params.get("missing"):
        params["missing"] = str(CHECKS[str(params["missing"])])
    return _filled_in(ADVICE[key], params)


def advice_in_short(row: int) -> str:
    """What a row advises, in a word or two."""
    return str(ADVICE_SHORT[row])


def fact(one: Fact) -> str:
    """A fact an advice cites."""
    params = dict(one.params)
    if "check" in params:
        params["check"] = str(CHECKS[str(params["check"])])
    return _filled_in(FACTS[one.said], params)


def would_change(code: str) -> str:
    """What would change an advice."""
    return str(WOULD_CHANGE[code])


def why_not(case: str, **params: Value) -> str:
    """Why a button cannot be pressed."""
    return _filled_in(WHY_NOT[case], params)


def urgency(of: Urgency) -> str:
    """The number and what it is made of: "73: harm (35), cannot be undone (25), …"."""
    parts = []
    for part in of.parts:
        if part.share is Share.HELD:
            parts.append(
                ngettext(
                    "%(count)d waits behind it (%(points)d)",
                    "%(count)d wait behind it (%(points)d)",
                    part.count,
                )
                % {"count": part.count, "points": part.points}
            )
        else:
            parts.append(str(_URGENT[part.share]) % {"points": part.points})
    return f"{of.number}: {', '.join(parts)}" if parts else str(of.number)


def _filled_in(text: str | Promise, params: dict[str, Value]) -> str:
    shown = {
        name: date_format(localtime(value), "DATETIME_FORMAT")
        if isinstance(value, datetime)
        else ("?" if value == "" else value)
        for name, value in params.items()
    }
    return str(text) % shown
