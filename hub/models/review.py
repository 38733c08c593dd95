"""Questions for a person, what they may choose from, and what was decided."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _


class Subject(models.TextChoices):
    OPERATION = "operation", _("operation")
    CONNECTION = "connection", _("connection")
    DRIFT = "drift", _("same key, other payload")
    DUPLICATE = "duplicate", _("possible duplicate")


class ReviewCase(models.Model):
    """One open question about one subject (C9). It closes when its subject moves on."""

    tenant = models.ForeignKey("hub.Tenant", models.PROTECT, verbose_name=_("tenant"))
    connection = models.ForeignKey("hub.Connection", models.PROTECT, verbose_name=_("connection"))
    operation = models.ForeignKey(
        "hub.Operation", models.PROTECT, null=True, blank=True, related_name="cases"
    )
    subject = models.CharField(_("about"), max_length=12, choices=Subject.choices)
    subject_id = models.BigIntegerField(_("number"))
    reason_code = models.CharField(_("reason code"), max_length=60)
    summary = models.TextField(_("what happened"))
    assumption = models.CharField(_("assumption that failed"), max_length=2, blank=True)
    advice = models.CharField(_("recommended action"), max_length=20, blank=True)
    count = models.PositiveIntegerField(_("times"), default=1)
    opened_at = models.DateTimeField(_("opened"))
    closed_at = models.DateTimeField(_("closed"), null=True, blank=True)
    closed_by = models.CharField(_("closed by"), max_length=150, blank=True)
    assigned_to = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        verbose_name=_("assigned to"),
    )

    class Meta:
        verbose_name = _("review case")
        verbose_name_plural = _("review cases")
        permissions = [
            ("decide_case", "Can decide review cases"),
            ("send_again", "Can send an operation again whose fate is unknown"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["subject", "subject_id"],
                condition=Q(closed_at__isnull=True),
                name="c9_one_open_case",
            )
        ]
        indexes = [
            models.Index(
                fields=["opened_at", "id"], condition=Q(closed_at__isnull=True), name="case_open"
            )
        ]

    def __str__(self) -> str:
        return f"{self.get_subject_display()} {self.subject_id}"


class Candidate(models.Model):
    """A remote object that may be the one an operation meant."""

    case = models.ForeignKey(ReviewCase, models.PROTECT, db_index=False, related_name="candidates")
    remote_ref = models.CharField(_("remote id"), max_length=255)
    matches = models.BooleanField(_("equal in every field we own"), default=False)
    reference = models.CharField(_("reference it carries"), max_length=128, blank=True)
    version = models.CharField(_("version it carries"), max_length=100, blank=True)
    fields = models.TextField(_("its fields"), blank=True, default="{}")
    differences = models.TextField(_("differences"), blank=True, default="[]")
    url = models.CharField(_("address"), max_length=500, blank=True)
    place = models.CharField(_("where it lies"), max_length=40, blank=True)
    seen_at = models.DateTimeField(_("seen"))
    refused_at = models.DateTimeField(_("said not to be it"), null=True, blank=True)
    refused_by = models.CharField(_("said by"), max_length=150, blank=True)

    class Meta:
        verbose_name = _("candidate")
        verbose_name_plural = _("candidates")
        constraints = [
            models.UniqueConstraint(fields=["case", "remote_ref"], name="candidate_once")
        ]

    def __str__(self) -> str:
        return self.remote_ref


class Decision(models.Model):
    """What a person chose, what they had before their eyes, and what came of it. Append-only."""

    case = models.ForeignKey(
        ReviewCase, models.PROTECT, null=True, blank=True, related_name="decisions"
    )
    operation = models.ForeignKey(
        "hub.Operation",
        models.PROTECT,
        null=True,
        blank=True,
        db_index=False,
        related_name="decisions",
    )
    action = models.CharField(_("decision"), max_length=20)
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    by_name = models.CharField(_("by"), max_length=150)
    reason = models.TextField(_("reason"))
    seen_state = models.CharField(_("state seen"), max_length=10, blank=True)
    seen_token = models.BigIntegerField(_("token seen"), null=True, blank=True)
    remote_ref = models.CharField(_("remote id chosen"), max_length=255, blank=True)
    at = models.DateTimeField(_("at"))
    done = models.BooleanField(_("carried out"))
    result = models.TextField(_("result"))
    form_token = models.CharField(max_length=64, blank=True, default="", editable=False)
    seen_digest = models.CharField(max_length=64, blank=True, default="", editable=False)
    advice_shown = models.TextField(_("advice shown"), blank=True, default="")
    effects = models.TextField(_("effects"), blank=True, default="{}")

    class Meta:
        verbose_name = _("decision")
        verbose_name_plural = _("decisions")
        constraints = [
            models.UniqueConstraint(
                fields=["form_token"], condition=~Q(form_token=""), name="decision_once"
            )
        ]
        indexes = [models.Index(fields=["operation", "at"], name="decision_timeline")]

    def __str__(self) -> str:
        return f"{self.action} {self.operation_id}"


class Note(models.Model):
    """What a person wrote down about a case, for colleagues; it has no effect on the exchange."""

    case = models.ForeignKey(ReviewCase, models.PROTECT, related_name="notes")
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    by_name = models.CharField(_("by"), max_length=150)
    at = models.DateTimeField(_("at"))
    text = models.TextField(_("note"))

    class Meta:
        verbose_name = _("note")
        verbose_name_plural = _("notes")

    def __str__(self) -> str:
        return f"{self.by_name} {self.case_id}"
