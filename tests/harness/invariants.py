"""One function that checks all invariants, after every test that runs operations, whatever the test
was about.

Each check yields sentences; `check_invariants` raises `InvariantsBroken` with all of them and the
stories of the
operations concerned. An outcome nobody can know (`review` in doubt, `discarded` in doubt) may match
no effect or one.
"""

from __future__ import annotations

import base64
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from django.apps import apps
from django.db.models import Count

from hub.models import (
    Attempt,
    Bucket,
    Connection,
    Decision,
    Operation,
    ReviewCase,
)
from hub.models import Mapping as MappingRow
from hub.states import ALLOWED, MOVING, RESTING, Actor, Purpose, State, allowed
from hub.story import as_dict, as_text
from tests.harness import audit
from tests.harness.views import CREATE, DELETE, Effect, Received, Thing

if TYPE_CHECKING:
    from tests.harness.world import World

SHOWN = 5
"""How many stories an error tells."""


class InvariantsBroken(AssertionError):
    """At least one invariant does not hold; the text names each, and tells what happened."""


@dataclass
class Account:
    """One connection with what its remote says."""

    row: Connection
    integration: str
    effects: list[Effect]
    writes: list[Received]
    requests: list[float]
    things: dict[str, Thing]
    differences: Callable[..., list[str]]


@dataclass
class Evidence:
    """Everything the checks read, read once."""

    world: World
    accounts: dict[int, Account]
    operations: dict[int, Operation]
    attempts: dict[int, list[Attempt]]
    audit: list[audit.Entry]
    owners: dict[tuple[int, str], set[int]] = field(default_factory=dict)
    """(connection, digest) → the operations that sent these bytes."""
    effects_of: dict[int, list[Effect]] = field(default_factory=lambda: defaultdict(list))
    orphans: list[tuple[int, Effect]] = field(default_factory=list)
    concerned: set[int] = field(default_factory=set)

    def name(self, operation_id: int) -> str:
        """The operation in words, and a note that its story is worth telling."""
        self.concerned.add(operation_id)
        row = self.operations.get(operation_id)
        return (
            f"operation {operation_id} ({row.action} {row.source_id} v{row.version})"
            if row
            else (f"operation {operation_id}")
        )


def gather(world: World) -> Evidence:
    """Read database, audit and remotes."""
    accounts: dict[int, Account] = {}
    for row in Connection.objects.select_related("tenant"):
        view = world.views.get(row.pk)
        if view is None:
            continue
        accounts[row.pk] = Account(
            row,
            view.integration,
            view.effects(row.account),
            view.writes(row.account),
            view.requests(row.account),
            view.things(row.account),
            view.differences,
        )
    found = Evidence(
        world,
        accounts,
        {row.pk: row for row in Operation.objects.select_related("connection")},
        defaultdict(list),
        audit.entries(),
    )
    for attempt in Attempt.objects.order_by("operation_id", "token"):
        found.attempts[attempt.operation_id].append(attempt)
    owners: dict[tuple[int, str], set[int]] = defaultdict(set)
    for one in found.operations.values():
        digests = {a.request_digest for a in found.attempts[one.pk]} | {one.request_digest}
        for digest in digests - {""}:
            owners[one.connection_id, digest].add(one.pk)
    found.owners = dict(owners)
    for key, account in accounts.items():
        for effect in account.effects:
            if effect.by_person:
                continue
            mine = found.owners.get((key, effect.digest), set())
            if len(mine) == 1:
                found.effects_of[next(iter(mine))].append(effect)
            elif not mine:
                found.orphans.append((key, effect))
    return found


# --- the checks, by number
# -------------------------------------------------------------------------


def i1_no_duplicate_effect(e: Evidence) -> Iterator[str]:
    """At most one effect per operation row; one object per reference, and one more per decision to
    send again.
    """
    for operation_id, effects in e.effects_of.items():
        if len(effects) > 1:
            numbers = [one.number for one in effects]
            yield f"{e.name(operation_id)} had {len(effects)} effects: {numbers}"
    again: Counter[tuple[int, str]] = Counter()
    for row in e.operations.values():
        if row.generation > 1 and row.doubt_lifted:
            again[row.connection_id, row.reference] += 1
    for key, account in e.accounts.items():
        there: dict[str, set[str]] = defaultdict(set)
        by_id: dict[str, str] = {}
        for effect in account.effects:
            if effect.kind == CREATE and effect.reference and not effect.by_person:
                there[effect.reference].add(effect.remote_id)
                by_id[effect.remote_id] = effect.reference
                if len(there[effect.reference]) > 1 + again[key, effect.reference]:
                    for owner in e.owners.get((key, effect.digest), ()):
                        e.concerned.add(owner)
                    yield (
                        f"{account.row.name}: {sorted(there[effect.reference])} all carry "
                        f"{effect.reference}"
                    )
            elif effect.kind == DELETE:
                there[by_id.get(effect.remote_id, "")].discard(effect.remote_id)


def i2_nothing_lost(e: Evidence) -> Iterator[str]:
    """Every acknowledged submit has its row, and every row rests."""
    for operation_id, what in e.world.submitted.items():
        if operation_id not in e.operations:
            yield f"operation {operation_id} ({what}) was acknowledged and is gone"
    copies = (
        Operation.objects.values("tenant_id", "operation_key", "generation")
        .annotate(n=Count("id"))
        .filter(n__gt=1)
    )
    for copy in copies:
        yield f"{copy['n']} rows for key {copy['operation_key']}"
    waiting = e.world.waiting_for_people()
    for row in e.operations.values():
        if State(row.state) in MOVING and row.pk not in waiting:
            yield f"{e.name(row.pk)} does not rest: it is {row.state} ({row.reason_text})"


def i3_confirmed_means_done(e: Evidence) -> Iterator[str]:
    """A confirmed create has its object; at rest an entity shows its highest confirmed version's
    fields.
    """
    for row in e.operations.values():
        account = e.accounts.get(row.connection_id)
        if account is None or row.state != State.CONFIRMED.value or not row.yields_ref:
            continue
        made = [x for x in account.effects if x.remote_id == row.remote_ref and x.kind == CREATE]
        if not made and row.remote_ref not in e.world.known_objects:
            yield f"{e.name(row.pk)} is confirmed as {row.remote_ref}, which was never created"
        elif made and not made[0].by_person and made[0].reference not in ("", row.reference):
            yield (
                f"{e.name(row.pk)} is confirmed as {row.remote_ref}, which carries "
                f"{made[0].reference}, not {row.reference}"
            )
    yield from _shown_at_rest(e)


def _shown_at_rest(e: Evidence) -> Iterator[str]:
    streams: dict[tuple[int, str], list[Operation]] = defaultdict(list)
    for row in e.operations.values():
        if row.connection_id in e.accounts and row.full_state:
            streams[row.connection_id, row.stream].append(row)
    for (key, _), found in streams.items():
        account = e.accounts[key]
        confirmed = [row for row in found if row.state == State.CONFIRMED.value]
        if not confirmed:
            continue
        last = max(confirmed, key=lambda row: (row.version, row.pk))
        if any(
            row.maybe_executed and (row.version, row.pk) > (last.version, last.pk) for row in found
        ):
            continue  # what it shows may be theirs
        mapping = MappingRow.objects.filter(
            connection_id=key,
            object_type=last.object_type,
            source_system=last.source_system,
            source_id=last.source_id,
        ).first()
        if mapping is None:
            yield f"{e.name(last.pk)} is confirmed and has no mapping"
            continue
        people = {x.remote_id for x in account.effects if x.by_person}
        if mapping.remote_ref in people - e.world.planted_on.get(key, set()):
            continue  # a person has changed it since, or before
        thing = account.things.get(mapping.remote_ref)
        if last.action.endswith(".delete"):
            if thing is not None:
                yield f"{e.name(last.pk)} is confirmed, and {mapping.remote_ref} is still there"
            continue
        if thing is None:
            yield f"{e.name(last.pk)} is confirmed, and {mapping.remote_ref} is not there"
            continue
        wrong = account.differences(
            json.loads(last.payload), thing.fields, json.loads(mapping.values or "{}")
        )
        for text in wrong:
            yield f"{e.name(last.pk)} is confirmed, but {mapping.remote_ref} shows {text}"


def i4_no_effect_without_record(e: Evidence) -> Iterator[str]:
    """What is failed, or discarded without doubt, had no effect; no effect is unknown to us."""
    for key, effect in e.orphans:
        yield (
            f"{e.accounts[key].row.name}: effect {effect.number} ({effect.kind} "
            f"{effect.remote_id}, {effect.reference}) belongs to no operation"
        )
    for operation_id, effects in e.effects_of.items():
        row = e.operations[operation_id]
        if row.state == State.FAILED.value or (
            row.state == State.DISCARDED.value and not row.maybe_executed
        ):
            yield f"{e.name(operation_id)} is {row.state}, and had effect {effects[0].number}"
        elif row.state == State.REVIEW.value and not row.maybe_executed and not row.remote_ref:
            yield f"{e.name(operation_id)} is in review without doubt, and had an effect"


def i5_one_worker(e: Evidence) -> Iterator[str]:
    """Tokens rise; a settle after a higher token is stale; one settle per token."""
    highest: dict[int, int] = defaultdict(int)
    settled: set[tuple[int, int]] = set()
    for entry in e.audit:
        operation_id, token = entry.operation_id, entry.new_token
        if operation_id is None or token is None:
            continue
        if entry.kind == "move":
            if entry.old_token is not None and token < entry.old_token:
                yield f"{e.name(operation_id)}: its token fell from {entry.old_token} to {token}"
            highest[operation_id] = max(highest[operation_id], token)
        elif entry.kind == "claimed":
            if token != highest[operation_id]:
                known = highest[operation_id]
                yield f"{e.name(operation_id)}: attempt {token}, but the token is {known}"
        elif entry.kind == "settled" and not entry.stale:
            if (operation_id, token) in settled:
                yield f"{e.name(operation_id)}: token {token} was settled twice"
            settled.add((operation_id, token))
            # The one statement that moves an operation may raise its token while it closes the
            # attempt.
            if token < highest[operation_id] - 1:
                yield (
                    f"{e.name(operation_id)}: token {token} settled after {highest[operation_id]} "
                    "was given out, and counts"
                )
    for operation_id, attempts in e.attempts.items():
        row = e.operations[operation_id]
        for attempt in attempts:
            if attempt.token > row.lease_token:
                yield f"{e.name(operation_id)}: attempt {attempt.token} is above its token"


def i6_one_open_per_stream(e: Evidence) -> Iterator[str]:
    """Never two operations of a stream that hold it, at any moment of the history."""
    holder: dict[tuple[int, str], int] = {}
    for entry in e.audit:
        if entry.kind != "move" or entry.operation_id not in e.operations:
            continue
        row = e.operations[entry.operation_id]
        stream = (row.connection_id, row.stream)
        if entry.busy and holder.get(stream, row.pk) != row.pk:
            yield f"{e.name(row.pk)} took its stream while {e.name(holder[stream])} held it"
        if entry.busy:
            holder[stream] = row.pk
        elif entry.was_busy and holder.get(stream) == row.pk:
            del holder[stream]


def i7_marker_before_byte(e: Evidence) -> Iterator[str]:
    """What the remotes' own witnesses saw while they handled writes, and that they could look."""
    for text in _complaints(e):
        if not text.startswith("I19"):
            yield text


def i19_no_transaction_spans_a_call(e: Evidence) -> Iterator[str]:
    """What the witness saw of open transactions (PostgreSQL)."""
    for text in _complaints(e):
        if text.startswith("I19"):
            yield text


def _complaints(e: Evidence) -> Iterator[str]:
    for view in {id(view): view for view in e.world.views.values()}.values():
        yield from view.complaints()


def i8_no_late_overwrite(e: Evidence) -> Iterator[str]:
    """The versions an object shows never fall."""
    for account in e.accounts.values():
        shown: dict[str, int] = {}
        for effect in account.effects:
            if effect.kind == DELETE:
                shown.pop(effect.remote_id, None)
            if effect.by_person or effect.version is None or effect.kind == DELETE:
                continue
            if effect.version < shown.get(effect.remote_id, effect.version):
                for owner in e.owners.get((account.row.pk, effect.digest), ()):
                    e.concerned.add(owner)
                yield (
                    f"{account.row.name}: {effect.remote_id} went from version "
                    f"{shown[effect.remote_id]} back to {effect.version} (effect {effect.number})"
                )
            shown[effect.remote_id] = effect.version


def i9_same_key_same_bytes(e: Evidence) -> Iterator[str]:
    """Under one key always the same bytes; a create always sends the same bytes."""
    for account in e.accounts.values():
        by_key: dict[str, set[str]] = defaultdict(set)
        for write in account.writes:
            if write.key:
                by_key[write.key].add(write.digest)
        for key, digests in by_key.items():
            if len(digests) > 1:
                yield f"{account.row.name}: key {key} came with {len(digests)} different bodies"
    for row in e.operations.values():
        digests = {a.request_digest for a in e.attempts[row.pk]} - {""}
        if row.yields_ref and len(digests) > 1:
            yield f"{e.name(row.pk)} sent {len(digests)} different bodies"


def i10_bounded(e: Evidence) -> Iterator[str]:
    """Attempts, repeats and lapses stay under their limits, and no attempt wrote twice."""
    limits = e.world.tuning.limits
    for row in e.operations.values():
        for name, value, most in (
            ("attempts", row.attempts, limits.max_attempts),
            ("lapses", row.lapses, limits.max_lapses),
        ):
            if value > most:
                yield f"{e.name(row.pk)} has {value} {name}, more than {most}"
        if len(e.attempts[row.pk]) > e.world.most_attempts:
            yield f"{e.name(row.pk)} was tried {len(e.attempts[row.pk])} times"
    received: Counter[tuple[int, str]] = Counter()
    for key, account in e.accounts.items():
        for write in account.writes:
            received[key, write.digest] += 1
    for (key, digest), count in received.items():
        mine = e.owners.get((key, digest), set())
        tries = sum(1 for o in mine for a in e.attempts[o] if a.request_digest == digest)
        if count > tries:
            names = ", ".join(e.name(one) for one in mine) or "no operation"
            yield f"{count} writes {digest[:12]} arrived for {tries} marked attempts of {names}"


def i11_records_only_grow(e: Evidence) -> Iterator[str]:
    """No operation, attempt, evidence or decision was deleted; no settled attempt was written
    again.
    """
    for entry in e.audit:
        if entry.kind == "forbidden":
            yield f"{entry.before} {entry.operation_id}: {entry.after}"


def i12_only_allowed_moves(e: Evidence) -> Iterator[str]:
    """Every change of state is a row of protocol §5; leaving rest takes a person's decision."""
    decided = Counter(Decision.objects.filter(done=True).values_list("operation_id", flat=True))
    left_rest: Counter[int] = Counter()
    for entry in e.audit:
        if entry.kind != "move" or entry.operation_id is None or entry.after is None:
            continue
        before = None if entry.before is None else State(entry.before)
        after = State(entry.after)
        if before == after:
            continue
        if (before, after) not in ALLOWED:
            yield f"{e.name(entry.operation_id)} went from {before} to {after}"
        elif before in RESTING:
            left_rest[entry.operation_id] += 1
        elif (
            before is not None
            and entry.owner
            and not any(
                allowed(before, after, actor) for actor in (Actor.WORKER, Actor.SWEEP, Actor.PERSON)
            )
        ):
            yield f"{e.name(entry.operation_id)}: {entry.owner} moved {before} to {after}"
    for operation_id, times in left_rest.items():
        if times > decided[operation_id]:
            made = decided[operation_id]
            yield f"{e.name(operation_id)} left its rest {times} times by {made} decisions"


def i13_not_ours_untouched(e: Evidence) -> Iterator[str]:
    """Values planted in fields we do not own are still there."""
    for (key, remote_ref), values in e.world.planted.items():
        account = e.accounts.get(key)
        thing = account.things.get(remote_ref) if account else None
        if thing is None:
            continue  # I3 says whether it may be gone
        for name, value in values.items():
            if thing.fields.get(name) != value:
                yield f"{remote_ref}: {name} was {value!r} and is {thing.fields.get(name)!r}"


def i14_tenants_never_mix(e: Evidence) -> Iterator[str]:
    """Every row carries its connection's tenant; every effect lies in its operation's account."""
    for model in (Operation, MappingRow, ReviewCase):
        for row in model._default_manager.select_related("connection"):
            if row.tenant_id != row.connection.tenant_id:
                yield f"{model.__name__} {row.pk} has another tenant than its connection"
    for case in ReviewCase.objects.exclude(operation=None).select_related("operation"):
        if case.operation is not None and case.tenant_id != case.operation.tenant_id:
            yield f"case {case.pk} has another tenant than its operation"
    for key, account in e.accounts.items():
        marks = {r.reference for r in e.operations.values() if r.connection_id == key}
        for effect in account.effects:
            if effect.kind == CREATE and not effect.by_person and effect.reference:
                if effect.reference not in marks:
                    name = account.row.name
                    yield f"{name}: {effect.remote_id} carries another account's reference"


def i15_no_secret_leaks(e: Evidence) -> Iterator[str]:
    """No planted secret stands in any row, log or output, however it is written."""
    forms = {form: name for name in e.world.canaries for form in spellings(name)}
    places: list[tuple[str, str]] = list(e.world.outputs())
    for model in apps.get_app_config("hub").get_models():
        columns = [
            f.attname
            for f in model._meta.concrete_fields
            if (model, f.attname) != (Connection, "secrets")
        ]
        for values in model._default_manager.values(*columns):
            places.append((f"{model.__name__} {values.get('id', '')}", str(values)))
    for place, text in places:
        for form in forms:
            if form in text:
                yield f"{place} holds a secret"
                break


def spellings(secret: str) -> set[str]:
    """A secret as it may leak: plain, base64 (at any offset), URL-encoded, JSON-escaped."""
    raw = secret.encode()
    inner = {
        base64.b64encode(b"\0" * pad + raw + b"\0" * ((3 - (pad + len(raw)) % 3) % 3)).decode()[
            4:-4
        ]
        for pad in (0, 1, 2)
    }
    return {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], *inner}


def i18_limits_hold(e: Evidence) -> Iterator[str]:
    """No window of time saw more requests than burst + rate × window."""
    for account in e.accounts.values():
        limit = account.row.limits.get("default")
        if not isinstance(limit, Mapping):
            continue
        rate, burst = float(limit["rate"]), float(limit["burst"])
        times = sorted(account.requests)
        for last, until in enumerate(times):
            for first in range(last + 1):
                most = burst + rate * (until - times[first]) + 1 + e.world.rate_slack
                if last - first + 1 > most:
                    yield (
                        f"{account.row.name}: {last - first + 1} requests in "
                        f"{until - times[first]:.2f} s, at most {most:.1f}"
                    )
                    return
    if Bucket.objects.filter(level__lt=-0.001).exists():
        yield "a bucket fell below nothing"


def i20_rest_is_explained(e: Evidence) -> Iterator[str]:
    """Every resting row has a reason; every row in review or failed has one open case, no other has
    one.
    """
    open_cases = Counter(
        ReviewCase.objects.filter(subject="operation", closed_at=None).values_list(
            "subject_id", flat=True
        )
    )
    for row in e.operations.values():
        state = State(row.state)
        if state in (State.FAILED, State.REVIEW, State.DISCARDED) and not row.reason_text.strip():
            yield f"{e.name(row.pk)} is {state} without a reason"
        if open_cases[row.pk] != (1 if state in RESTING else 0):
            yield f"{e.name(row.pk)} is {state} with {open_cases[row.pk]} open cases"
        if row.lease_until is not None and state not in MOVING:
            yield f"{e.name(row.pk)} is {state} and still leased"
        if row.parked and state not in (State.PENDING, State.RETRY):
            yield f"{e.name(row.pk)} is {state} and parked"
        if state not in MOVING and any(a.settled_at is None for a in e.attempts[row.pk]):
            yield f"{e.name(row.pk)} is {state} with an attempt that was never closed"


CHECKS: Mapping[str, Callable[[Evidence], Iterator[str]]] = {
    "I1": i1_no_duplicate_effect,
    "I2": i2_nothing_lost,
    "I3": i3_confirmed_means_done,
    "I4": i4_no_effect_without_record,
    "I5": i5_one_worker,
    "I6": i6_one_open_per_stream,
    "I7": i7_marker_before_byte,
    "I8": i8_no_late_overwrite,
    "I9": i9_same_key_same_bytes,
    "I10": i10_bounded,
    "I11": i11_records_only_grow,
    "I12": i12_only_allowed_moves,
    "I13": i13_not_ours_untouched,
    "I14": i14_tenants_never_mix,
    "I15": i15_no_secret_leaks,
    "I18": i18_limits_hold,
    "I19": i19_no_transaction_spans_a_call,
    "I20": i20_rest_is_explained,
}
"""I21 is the bound of `World.settle`; I16 and I17 come with the inbox."""


def broken(world: World) -> dict[str, list[str]]:
    """Every broken invariant with its sentences; what the test has allowed is left out."""
    evidence = gather(world)
    found = {name: list(check(evidence)) for name, check in CHECKS.items()}
    world.situations.note(evidence)
    world.concerned = sorted(evidence.concerned)
    return {name: texts for name, texts in found.items() if texts and name not in world.allowed}


def story(operation_id: int) -> str:
    """What happened to an operation, in words."""
    found = as_dict(operation_id)
    return as_text(found) if found is not None else f"operation {operation_id} is gone"


def check_invariants(world: World) -> None:
    """Raise `InvariantsBroken` when anything that must always hold does not."""
    found = broken(world)
    if not found:
        return
    lines = [f"{name}: {text}" for name, texts in found.items() for text in texts[:20]]
    lines += [
        f"{name}: and {len(texts) - 20} more" for name, texts in found.items() if len(texts) > 20
    ]
    for operation_id in world.concerned[:SHOWN]:
        if Operation.objects.filter(pk=operation_id).exists():
            lines += ["", story(operation_id)]
    raise InvariantsBroken("\n" + "\n".join(lines))


_ = (Any, Purpose)
