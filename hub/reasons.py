"""Why a case stands before a person: the twenty reasons of the panel, and which code means which.

The engine's codes say what a move was made for, and there are many; a person is told one of these.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """What stopped, in the terms of the panel."""

    UNKNOWN_OUTCOME = "unknown-outcome"
    NO_LOOKUP = "no-lookup-available"
    KEY_EXPIRED = "key-expired"
    MANY_CANDIDATES = "many-candidates"
    NOT_PROVEN = "one-candidate-not-proven"
    PAYLOAD_CHANGED = "payload-changed"
    VERSION_MOVED = "version-moved"
    MAPPING_CONFLICT = "mapping-conflict"
    OTHER_VERSION = "finished-for-other-version"
    OWNERSHIP = "ownership-question"
    PERMISSION = "permission"
    VALIDATION = "validation"
    CONFIGURATION = "configuration"
    REMOTE_CONFLICT = "remote-conflict"
    ATTEMPTS_USED = "attempts-used"
    DIFFERENCE = "difference"
    DUPLICATES = "duplicates"
    CONTRACT_BROKEN = "contract-broken"
    CONNECTION_STOPPED = "connection-stopped"
    INTERNAL = "internal"


REASON_OF: dict[str, Reason] = {
    "unknown": Reason.UNKNOWN_OUTCOME,
    "undecided": Reason.UNKNOWN_OUTCOME,
    "looking": Reason.UNKNOWN_OUTCOME,
    "restored": Reason.UNKNOWN_OUTCOME,
    "inherited_doubt": Reason.UNKNOWN_OUTCOME,
    "taken_over": Reason.UNKNOWN_OUTCOME,
    "unknown_job": Reason.UNKNOWN_OUTCOME,
    "job_too_long": Reason.UNKNOWN_OUTCOME,
    "no_result": Reason.UNKNOWN_OUTCOME,
    "no_safe_repeat": Reason.UNKNOWN_OUTCOME,
    "no_look": Reason.NO_LOOKUP,
    "key_used_up": Reason.KEY_EXPIRED,
    "several_found": Reason.MANY_CANDIDATES,
    "found_different": Reason.NOT_PROVEN,
    "found_put_away": Reason.NOT_PROVEN,
    "named_by_late_result": Reason.NOT_PROVEN,
    "drift": Reason.PAYLOAD_CHANGED,
    "key_reused": Reason.PAYLOAD_CHANGED,
    "changed_meanwhile": Reason.VERSION_MOVED,
    "mapping_taken": Reason.MAPPING_CONFLICT,
    "other_version": Reason.OTHER_VERSION,
    "denied": Reason.PERMISSION,
    "refused": Reason.VALIDATION,
    "job_failed": Reason.VALIDATION,
    "no_mapping": Reason.CONFIGURATION,
    "configuration": Reason.CONFIGURATION,
    "code_missing": Reason.CONFIGURATION,
    "unusable": Reason.CONFIGURATION,
    "proxy_login": Reason.CONFIGURATION,
    "schema": Reason.CONFIGURATION,
    "conflict": Reason.REMOTE_CONFLICT,
    "exists": Reason.REMOTE_CONFLICT,
    "version_conflict": Reason.REMOTE_CONFLICT,
    "vanished": Reason.REMOTE_CONFLICT,
    "exhausted": Reason.ATTEMPTS_USED,
    "absent_again": Reason.ATTEMPTS_USED,
    "late_duplicate": Reason.DUPLICATES,
    "key_ignored": Reason.CONTRACT_BROKEN,
    "key_stores_error": Reason.CONTRACT_BROKEN,
    "reference_ignored": Reason.CONTRACT_BROKEN,
    "credential": Reason.CONNECTION_STOPPED,
    "certificate": Reason.CONNECTION_STOPPED,
    "our_defect": Reason.INTERNAL,
    "poison": Reason.INTERNAL,
    "not_storable": Reason.INTERNAL,
    "follow_up_failed": Reason.INTERNAL,
}
"""Each code a case is opened with, and the reason it is an instance of."""


def reason_of(code: str) -> Reason | None:
    """The reason a code is an instance of; None for one that opens no case."""
    return REASON_OF.get(code)
