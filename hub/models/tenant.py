"""Whose data it is."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class Tenant(models.Model):
    """One company (or one part of it) whose data never meets another's."""

    slug = models.SlugField(_("short name"), max_length=50, unique=True)
    name = models.CharField(_("name"), max_length=200)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        verbose_name = _("tenant")
        verbose_name_plural = _("tenants")
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.name
