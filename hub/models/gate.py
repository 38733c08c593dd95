"""May this connection send now, and how much: what workers write about a connection while it
runs.
"""

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _


class PauseKind(models.TextChoices):
    PERSON = "person", _("paused by a person")
    CREDENTIAL = "credential", _("the remote refuses our credential")
    CERTIFICATE = "certificate", _("the remote's certificate is not valid")


class Breaker(models.TextChoices):
    CLOSED = "closed", _("closed")
    OPEN = "open", _("open")
    HALF_OPEN = "half_open", _("half open")


class Gate(models.Model):
    """Pause and breaker of one connection. Only conditional updates write it."""

    connection = models.OneToOneField(
        "hub.Connection", models.PROTECT, primary_key=True, related_name="gate"
    )
    paused_at = models.DateTimeField(_("paused since"), null=True, blank=True)
    paused_until = models.DateTimeField(_("paused until"), null=True, blank=True)
    pause_kind = models.CharField(_("kind"), max_length=20, blank=True, choices=PauseKind.choices)
    pause_reason = models.CharField(_("reason"), max_length=500, blank=True)
    paused_by = models.CharField(_("paused by"), max_length=150, blank=True)
    breaker = models.CharField(
        _("breaker"), max_length=10, choices=Breaker.choices, default=Breaker.CLOSED
    )
    failures = models.PositiveIntegerField(_("failures in a row"), default=0)
    openings = models.PositiveIntegerField(_("openings in a row"), default=0)
    breaker_until = models.DateTimeField(_("next probe"), null=True, blank=True)
    throttled_until = models.DateTimeField(_("throttled until"), null=True, blank=True)
    opened_at = models.DateTimeField(_("last opened"), null=True, blank=True)
    """The end of the last pause or break: ages count from here (protocol §11)."""
    degraded = models.JSONField(_("actions that dropped a class"), default=dict, blank=True)

    class Meta:
        verbose_name = _("gate")
        verbose_name_plural = _("gates")
        constraints = [
            models.CheckConstraint(
                name="gate_pause_has_reason",
                condition=Q(paused_at__isnull=True) | ~Q(pause_reason=""),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.connection_id}"


class Bucket(models.Model):
    """A rate limit shared by all workers: one per scope (remote host or account) and limit
    group.
    """

    scope = models.CharField(_("scope"), max_length=250)
    group = models.CharField(_("limit group"), max_length=60)
    rate = models.FloatField(_("per second"))
    burst = models.FloatField(_("at once"))
    level = models.FloatField(_("tokens left"))
    refreshed_at = models.DateTimeField(_("as of"))
    slowed_until = models.DateTimeField(_("slowed until"), null=True, blank=True)

    class Meta:
        verbose_name = _("rate bucket")
        verbose_name_plural = _("rate buckets")
        constraints = [
            models.UniqueConstraint(fields=["scope", "group"], name="bucket_scope_group"),
            models.CheckConstraint(name="bucket_positive", condition=Q(rate__gt=0, burst__gte=1)),
        ]

    def __str__(self) -> str:
        return f"{self.scope} · {self.group}"
