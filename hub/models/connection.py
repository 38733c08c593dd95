"""One account in one remote system, as an administrator set it up."""

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from hub.models.gate import Gate


class Connection(models.Model):
    """Settings only. What workers write while it runs (pause, breaker, tokens) lives in its gate
    and buckets, so that saving a form can never reopen a breaker (protocol §3).

    `account` is fixed once operations exist: another account is another connection. `numbers`
    overrides what the connector declares per action: ``{"contact.create": {"max_exec": {"value":
    60, "source": "...", "date": "..."}}}``, with ``"*"`` for all actions. `limits` overrides rates:
    ``{"default": {"rate": 2, "burst": 40, "source": ..., "date": ...}}``,
    ``null`` for none. `secrets` is sealed by `hub.credentials`; no other module opens it.
    """

    tenant = models.ForeignKey(
        "hub.Tenant", models.PROTECT, related_name="connections", verbose_name=_("tenant")
    )
    name = models.SlugField(_("name"), max_length=60, unique=True)
    label = models.CharField(_("title"), max_length=200, blank=True)
    integration = models.CharField(_("integration"), max_length=50)
    account = models.CharField(_("remote account"), max_length=200)
    base_url = models.CharField(_("address"), max_length=500)
    secrets = models.TextField(_("credentials"), blank=True, editable=False)
    options = models.JSONField(_("options"), default=dict, blank=True)
    numbers = models.JSONField(_("numbers of the actions"), default=dict, blank=True)
    limits = models.JSONField(_("rate limits"), default=dict, blank=True)
    max_in_flight = models.PositiveIntegerField(_("most calls at once"), default=20)
    networks = models.CharField(_("allowed private networks"), max_length=500, blank=True)
    proxy_url = models.CharField(_("HTTP proxy"), max_length=500, blank=True)
    ca_file = models.CharField(_("own certificate authority"), max_length=500, blank=True)
    sole_writer = models.BooleanField(_("nobody else writes under our identity (A5)"), default=True)
    contact = models.CharField(_("whom to ask there"), max_length=200, blank=True)
    retired_at = models.DateTimeField(_("retired"), null=True, blank=True)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        verbose_name = _("connection")
        verbose_name_plural = _("connections")
        ordering = ["name"]

    def __str__(self) -> str:
        return self.label or self.name

    def save(self, *args: Any, **options: Any) -> None:
        """Save; a new connection gets its gate with it, so that it can never be claimed without
        one.
        """
        super().save(*args, **options)
        Gate.objects.get_or_create(connection=self)

    def allowed_networks(self) -> tuple[str, ...]:
        """The private networks this connection may reach besides public addresses."""
        return tuple(self.networks.replace(",", " ").split())

    def numbers_for(self, action: str) -> dict[str, Any]:
        """This connection's own numbers for an action, over those for all actions."""
        return {**self.numbers.get("*", {}), **self.numbers.get(action, {})}
