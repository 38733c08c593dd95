"""The installation itself, and the drains that are alive in it."""

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _


class Installation(models.Model):
    """One row. `epoch`, token base and version base are raised after a restore (protocol §17)."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    mark = models.SlugField(_("our mark at remotes"), max_length=40, default="hub")
    epoch = models.PositiveIntegerField(_("epoch"), default=1)
    token_base = models.BigIntegerField(_("token base"), default=0)
    version_base = models.BigIntegerField(_("version base"), default=0)
    restored_at = models.DateTimeField(_("last restore"), null=True, blank=True)
    clock_jumped_at = models.DateTimeField(_("last step of the clock"), null=True, blank=True)
    clock_note = models.CharField(_("clock"), max_length=300, blank=True)
    exchange_at = models.DateTimeField(_("last whole exchange"), null=True, blank=True)

    class Meta:
        verbose_name = _("installation")
        verbose_name_plural = _("installation")
        constraints = [models.CheckConstraint(name="installation_single", condition=Q(id=1))]

    def __str__(self) -> str:
        return self.mark

    @classmethod
    def current(cls) -> "Installation":
        """The one row; made when it is first asked for."""
        return cls.objects.get_or_create(pk=1)[0]


class Heartbeat(models.Model):
    """One row per drain that is, or was lately, at work."""

    drain = models.CharField(_("drain"), max_length=80, unique=True)
    host = models.CharField(_("host"), max_length=200)
    pid = models.PositiveIntegerField(_("process"))
    epoch = models.PositiveIntegerField(_("epoch"))
    started_at = models.DateTimeField(_("started"))
    beat_at = models.DateTimeField(_("last beat"), db_index=True)
    in_flight = models.PositiveIntegerField(_("in flight"), default=0)
    settled = models.PositiveBigIntegerField(_("settled"), default=0)

    class Meta:
        verbose_name = _("heartbeat")
        verbose_name_plural = _("heartbeats")

    def __str__(self) -> str:
        return self.drain
