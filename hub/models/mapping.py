"""Which local thing is which remote thing."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class Mapping(models.Model):
    """Entity ↔ remote id on one connection, unique both ways (C6), with what was last seen on each
    side.

    The source system is part of the entity's identity: two systems number their objects
    independently. A deleted object keeps its row (`deleted_at`), so that a late update cannot
    revive it.
    """

    tenant = models.ForeignKey(
        "hub.Tenant", models.PROTECT, db_index=False, verbose_name=_("tenant")
    )
    connection = models.ForeignKey(
        "hub.Connection", models.PROTECT, db_index=False, verbose_name=_("connection")
    )
    object_type = models.CharField(_("object type"), max_length=60)
    source_system = models.CharField(_("source system"), max_length=60)
    source_id = models.CharField(_("source id"), max_length=255)
    remote_ref = models.CharField(_("remote id"), max_length=255)
    version = models.BigIntegerField(_("version confirmed there"), default=0)
    remote_version = models.CharField(_("their version"), max_length=100, blank=True)
    values = models.TextField(_("values last seen there"), blank=True, default="{}")
    revision = models.BigIntegerField(_("revision"), default=1)
    updated_at = models.DateTimeField(_("changed"))
    deleted_at = models.DateTimeField(_("deleted there"), null=True, blank=True)

    class Meta:
        verbose_name = _("mapping")
        verbose_name_plural = _("mappings")
        constraints = [
            models.UniqueConstraint(
                fields=["connection", "object_type", "source_system", "source_id", "tenant"],
                name="c6_mapping_entity",
            ),
            models.UniqueConstraint(
                fields=["remote_ref", "connection", "object_type"], name="c6_mapping_remote"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.object_type} {self.source_id} = {self.remote_ref}"
