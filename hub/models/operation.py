"""The operation row, which is the outbox, and all that happened to it."""

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from hub.states import ErrorClass, Outcome, Purpose, State

STATE_LABELS = [
    (State.PENDING.value, _("pending")),
    (State.RUNNING.value, _("running")),
    (State.SENT.value, _("sent")),
    (State.UNCERTAIN.value, _("uncertain")),
    (State.ACCEPTED.value, _("accepted")),
    (State.RETRY.value, _("retry needed")),
    (State.CONFIRMED.value, _("confirmed")),
    (State.FAILED.value, _("failed")),
    (State.REVIEW.value, _("review needed")),
    (State.DISCARDED.value, _("discarded")),
]

LEASED = ["running", "sent", "uncertain", "accepted"]
CLAIMABLE = ["pending", "retry"]
CLOSED = ["confirmed", "discarded"]


class Operation(models.Model):
    """One logical intent towards one connection, written in the transaction of the change that
    caused it.

    Only `hub.moves` changes its state, by conditional updates whose `WHERE` names the old state and
    the token.
    `payload` is the canonical JSON text its fingerprint was taken of.
    """

    # Foreign keys have no index of their own where another one begins with them: each is written
    # anew with every move of a row.
    tenant = models.ForeignKey(
        "hub.Tenant", models.PROTECT, db_index=False, verbose_name=_("tenant")
    )
    connection = models.ForeignKey(
        "hub.Connection",
        models.PROTECT,
        db_index=False,
        related_name="operations",
        verbose_name=_("connection"),
    )
    source_system = models.CharField(_("source system"), max_length=60)
    object_type = models.CharField(_("object type"), max_length=60)
    source_id = models.CharField(_("source id"), max_length=255)
    action = models.CharField(_("action"), max_length=60)
    version = models.BigIntegerField(_("version"))
    variant = models.CharField(_("variant"), max_length=120, blank=True)

    operation_key = models.CharField(_("operation key"), max_length=64)
    generation = models.PositiveIntegerField(_("generation"), default=1)
    remote_key = models.CharField(_("idempotency key"), max_length=128)
    reference = models.CharField(_("reference"), max_length=128)
    progress = models.JSONField(_("progress"), null=True, blank=True)

    payload = models.TextField(_("payload"))
    payload_schema = models.PositiveSmallIntegerField(_("payload schema"), default=1)
    fingerprint = models.CharField(_("fingerprint"), max_length=64)

    state = models.CharField(
        _("state"), max_length=10, choices=STATE_LABELS, default=State.PENDING.value
    )
    state_since = models.DateTimeField(_("since"))
    retry_since = models.DateTimeField(_("retrying since"), null=True, blank=True)
    """The first of the retries that are still going on; their age counts from here (protocol
    §11).
    """
    reason_code = models.CharField(_("reason code"), max_length=60, blank=True)
    reason_text = models.TextField(_("reason"), blank=True)
    next_at = models.DateTimeField(_("next run"))
    parked = models.BooleanField(_("behind another version"), default=False)
    lapses = models.PositiveSmallIntegerField(_("lapses in a row"), default=0)
    attempts = models.PositiveIntegerField(_("attempts"), default=0)
    repeats = models.PositiveSmallIntegerField(_("repeats after absence"), default=0)
    looks = models.PositiveIntegerField(_("looks since last sent"), default=0)

    lease_token = models.BigIntegerField(_("lease token"), default=0)
    lease_owner = models.CharField(_("lease owner"), max_length=80, blank=True)
    lease_until = models.DateTimeField(_("leased until"), null=True, blank=True)
    sent_at = models.DateTimeField(_("last marked"), null=True, blank=True)
    first_sent_at = models.DateTimeField(_("first marked"), null=True, blank=True)
    request_digest = models.CharField(_("digest of the last request"), max_length=64, blank=True)
    last_byte_at = models.DateTimeField(_("bytes can have left until"), null=True, blank=True)
    """`t_last` of protocol §9.1, for the last attempt of unknown fate."""
    absent_since = models.DateTimeField(_("first trustworthy absence"), null=True, blank=True)
    """When the first complete look that found nothing, begun late enough to count, was begun."""
    maybe_executed = models.BooleanField(_("may have been executed"), default=False)
    repeat_until = models.DateTimeField(_("key alive until"), null=True, blank=True)
    """A repeat in doubt may be claimed before this moment only; empty: no key has to live."""

    stream = models.CharField(_("stream"), max_length=32)
    stream_busy = models.BooleanField(_("holds its stream"), default=False)
    hold_until = models.DateTimeField(_("holds the next until"), null=True, blank=True)
    full_state = models.BooleanField(_("carries the full state"), default=True)
    yields_ref = models.BooleanField(_("creates an object"), default=False)
    doubt_lifted = models.BooleanField(_("sent again by decision"), default=False)
    remote_ref = models.CharField(_("remote id"), max_length=255, blank=True)
    remote_version = models.CharField(_("their version"), max_length=100, blank=True)
    job = models.CharField(_("job over there"), max_length=255, blank=True)
    supersedes = models.ForeignKey(
        "self",
        models.PROTECT,
        null=True,
        blank=True,
        db_index=False,
        related_name="superseded_by",
    )
    after = models.ManyToManyField(
        "self", through="hub.Dependency", symmetrical=False, related_name="before"
    )
    created_at = models.DateTimeField(_("created"))
    confirmed_at = models.DateTimeField(_("confirmed"), null=True, blank=True)
    correlation_id = models.CharField(_("correlation"), max_length=64, blank=True)
    epoch = models.PositiveIntegerField(_("epoch"), default=1)
    restored = models.BooleanField(_("in doubt after a restore"), default=False)

    class Meta:
        verbose_name = _("operation")
        verbose_name_plural = _("operations")
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "operation_key", "generation"], name="c1_operation_key"
            ),
            models.UniqueConstraint(
                fields=["tenant", "connection", "stream"],
                condition=Q(stream_busy=True),
                name="c2_one_busy_per_stream",
            ),
            models.CheckConstraint(
                name="c3_lease_only_where_allowed",
                condition=(Q(lease_until__isnull=True) | Q(state__in=LEASED)),
            ),
            models.CheckConstraint(
                name="c3_lease_always_in_flight",
                condition=~Q(state__in=["running", "sent"]) | Q(lease_until__isnull=False),
            ),
            models.CheckConstraint(
                name="c4_busy_in_flight", condition=~Q(state__in=LEASED) | Q(stream_busy=True)
            ),
            models.CheckConstraint(
                name="c4_busy_in_doubt",
                condition=(
                    Q(maybe_executed=False)
                    | Q(state__in=["confirmed", "failed", "discarded"])
                    | Q(stream_busy=True)
                ),
            ),
            models.CheckConstraint(
                name="c8_confirmed_is_complete",
                condition=(
                    ~Q(state="confirmed")
                    | (
                        Q(confirmed_at__isnull=False)
                        & (Q(yields_ref=False) | ~Q(remote_ref=""))
                        & Q(maybe_executed=False)
                    )
                ),
            ),
            models.CheckConstraint(
                name="c10_parked_only_when_waiting",
                condition=Q(parked=False) | Q(state__in=CLAIMABLE),
            ),
            models.CheckConstraint(
                name="failed_is_never_in_doubt",
                condition=~Q(state="failed") | Q(maybe_executed=False),
            ),
        ]
        indexes = [
            models.Index(
                fields=["connection", "next_at", "id"],
                condition=Q(state__in=CLAIMABLE, parked=False),
                name="operation_due",
            ),
            models.Index(
                fields=["connection", "stream", "version", "id"],
                condition=~Q(state__in=CLOSED),
                name="operation_unsettled",
            ),
            models.Index(
                fields=["connection", "stream", "version", "id"],
                condition=Q(parked=True),
                name="operation_parked",
            ),
            models.Index(
                fields=["lease_until"],
                condition=Q(lease_until__isnull=False),
                name="operation_leased",
            ),
            models.Index(
                fields=["connection", "next_at", "id"],
                condition=Q(state__in=["uncertain", "accepted"]),
                name="operation_to_look",
            ),
            models.Index(
                fields=["connection", "stream", "version"],
                condition=Q(first_sent_at__isnull=False),
                name="operation_sent",
            ),
            models.Index(
                fields=["connection", "stream", "hold_until"],
                condition=Q(hold_until__isnull=False),
                name="operation_hold",
            ),
            models.Index(
                fields=["connection", "stream"],
                condition=Q(state="discarded", maybe_executed=True, yields_ref=True),
                name="operation_doubt_left",
            ),
            models.Index(
                fields=["repeat_until"],
                condition=Q(repeat_until__isnull=False),
                name="operation_key_life",
            ),
            models.Index(
                fields=["lapses", "next_at"], condition=Q(lapses__gt=0), name="operation_lapsed"
            ),
            models.Index(
                fields=["state", "state_since"],
                condition=~Q(state__in=CLOSED),
                name="operation_by_state",
            ),
            models.Index(
                fields=["connection", "object_type", "source_id"], name="operation_entity"
            ),
            models.Index(fields=["reference"], name="operation_reference"),
            models.Index(
                fields=["supersedes"],
                condition=Q(supersedes__isnull=False),
                name="operation_supersedes",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.source_id} v{self.version} (#{self.pk})"


class Dependency(models.Model):
    """`child` may be claimed only when `parent` is confirmed (an `after` edge, protocol §13)."""

    child = models.ForeignKey(Operation, models.PROTECT, db_index=False, related_name="+")
    parent = models.ForeignKey(Operation, models.PROTECT, related_name="+")

    class Meta:
        verbose_name = _("dependency")
        verbose_name_plural = _("dependencies")
        constraints = [
            models.UniqueConstraint(fields=["child", "parent"], name="dependency_once"),
            models.CheckConstraint(name="dependency_not_itself", condition=~Q(child=F("parent"))),
        ]

    def __str__(self) -> str:
        return f"{self.child_id} after {self.parent_id}"


class Attempt(models.Model):
    """One try, opened by the claim before anything leaves, filled once, never deleted."""

    operation = models.ForeignKey(
        Operation, models.PROTECT, db_index=False, related_name="attempt_set"
    )
    token = models.BigIntegerField(_("token"))
    purpose = models.CharField(
        _("purpose"), max_length=8, choices=[(p.value, p.value) for p in Purpose]
    )
    worker = models.CharField(_("worker"), max_length=80)
    claimed_at = models.DateTimeField(_("claimed"))
    marked_at = models.DateTimeField(_("marked"), null=True, blank=True)
    left = models.CharField(_("bytes left"), max_length=5, blank=True)
    request_digest = models.CharField(_("digest of the request"), max_length=64, blank=True)
    settled_at = models.DateTimeField(_("settled"), null=True, blank=True)
    outcome = models.CharField(
        _("outcome"), max_length=1, blank=True, choices=[(o.value, o.value) for o in Outcome]
    )
    verdict = models.TextField(_("verdict"), blank=True)
    error_class = models.CharField(
        _("error class"),
        max_length=12,
        blank=True,
        choices=[(e.value, e.value) for e in ErrorClass],
    )
    status = models.PositiveSmallIntegerField(_("HTTP status"), null=True, blank=True)
    remote_request_id = models.CharField(_("their request id"), max_length=120, blank=True)
    duration_ms = models.PositiveIntegerField(_("milliseconds"), null=True, blank=True)
    seen = models.TextField(_("what was seen"), blank=True)
    stale = models.BooleanField(_("came too late to count"), default=False)

    class Meta:
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        constraints = [
            models.UniqueConstraint(fields=["operation", "token"], name="c5_attempt_token")
        ]

    def __str__(self) -> str:
        return f"{self.operation_id}/{self.token}"


class Evidence(models.Model):
    """A fact that is no attempt's own: late results, moves by the sweep, notes. Only ever added
    to.
    """

    operation = models.ForeignKey(
        Operation, models.PROTECT, db_index=False, related_name="evidence_set"
    )
    at = models.DateTimeField(_("at"))
    actor = models.CharField(_("by"), max_length=150)
    kind = models.CharField(_("kind"), max_length=30)
    text = models.TextField(_("what happened"))
    token = models.BigIntegerField(_("token"), null=True, blank=True)
    data = models.TextField(_("details"), blank=True)

    class Meta:
        verbose_name = _("evidence")
        verbose_name_plural = _("evidence")
        indexes = [models.Index(fields=["operation", "at"], name="evidence_timeline")]

    def __str__(self) -> str:
        return f"{self.kind} {self.operation_id}"
