"""Who may see whose data, and who looked at personal values or was refused."""

from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _


class Scope(models.Model):
    """One place a person or a group may see: a tenant with all its connections, or one connection.

    Scopes add up; nothing is taken away. Whoever has none sees nobody's data, unless superuser.
    What may be done within a scope are Django's permissions; `values` alone is given by place.
    """

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="scopes",
        verbose_name=_("user"),
    )
    group = models.ForeignKey(
        "auth.Group",
        models.CASCADE,
        null=True,
        blank=True,
        related_name="scopes",
        verbose_name=_("group"),
    )
    tenant = models.ForeignKey(
        "hub.Tenant", models.PROTECT, null=True, blank=True, verbose_name=_("tenant")
    )
    connection = models.ForeignKey(
        "hub.Connection", models.PROTECT, null=True, blank=True, verbose_name=_("connection")
    )
    values = models.BooleanField(_("may show personal values here"), default=False)

    class Meta:
        verbose_name = _("scope")
        verbose_name_plural = _("scopes")
        # The rights of people that belong to no single kind of row.
        permissions = [
            ("work_case", "Can look again, note, take and assign"),
            ("judge_case", "Can decide cases of judgement and confirm as done"),
            ("discard_doubt", "Can discard what may have happened"),
            ("pause_connection", "Can test, pause and resume connections"),
            ("see_values", "Can show personal values"),
            ("see_technical", "Can see the raw technical view"),
            ("export_history", "Can export decisions and history"),
        ]
        constraints = [
            models.CheckConstraint(
                name="scope_of_one",
                condition=Q(user__isnull=True, group__isnull=False)
                | Q(user__isnull=False, group__isnull=True),
            ),
            models.CheckConstraint(
                name="scope_of_one_place",
                condition=Q(tenant__isnull=True, connection__isnull=False)
                | Q(tenant__isnull=False, connection__isnull=True),
            ),
            *(
                models.UniqueConstraint(
                    fields=[who, place],
                    condition=Q(**{f"{who}__isnull": False, f"{place}__isnull": False}),
                    name=f"scope_{who}_{place}_once",
                )
                for who in ("user", "group")
                for place in ("tenant", "connection")
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user or self.group} → {self.tenant or self.connection}"


class AppendOnly(models.Model):
    """A record of what a person did: saved once, never changed, never deleted."""

    class Meta:
        abstract = True

    def save(self, *args: Any, **options: Any) -> None:
        """Insert; a second save is a defect of the caller."""
        if self.pk is not None:
            raise TypeError(f"{type(self).__name__} is append-only: make a new row.")
        super().save(*args, **options)

    def delete(self, *args: Any, **options: Any) -> tuple[int, dict[str, int]]:
        """Refused."""
        raise TypeError(f"{type(self).__name__} is append-only: nothing of it is deleted.")


class Reveal(AppendOnly):
    """Somebody had personal values shown: who, of which row, which fields, when. Never the
    values.
    """

    at = models.DateTimeField(_("at"))
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, related_name="+", verbose_name=_("user")
    )
    user_name = models.CharField(_("by"), max_length=150)
    connection = models.ForeignKey("hub.Connection", models.PROTECT, verbose_name=_("connection"))
    operation = models.ForeignKey(
        "hub.Operation", models.PROTECT, null=True, db_index=False, related_name="+"
    )
    subject = models.CharField(_("about"), max_length=40)
    subject_id = models.BigIntegerField(_("number"))
    fields = models.TextField(_("fields"), blank=True)

    class Meta:
        verbose_name = _("reveal")
        verbose_name_plural = _("reveals")

    def __str__(self) -> str:
        return f"{self.user_name}: {self.subject} {self.subject_id}"


class Refusal(AppendOnly):
    """Somebody asked for a change without the right to it, where no decision records it."""

    at = models.DateTimeField(_("at"))
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, related_name="+", verbose_name=_("user")
    )
    user_name = models.CharField(_("by"), max_length=150)
    permission = models.CharField(_("permission that was missing"), max_length=120, blank=True)
    method = models.CharField(_("method"), max_length=10)
    path = models.CharField(_("address"), max_length=300)

    class Meta:
        verbose_name = _("refusal")
        verbose_name_plural = _("refusals")

    def __str__(self) -> str:
        return f"{self.user_name}: {self.path}"
