"""Connections: the one thing an administrator sets up here. Saving writes settings only, and only
what was changed.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _

from hub import gate
from hub.admin.base import AskedByFilters, TenantFilter
from hub.admin.connection_form import FIXED, PLAIN, Plan, form_class, plan_for
from hub.models import Connection
from hub.panel import connection as pages
from hub.registry import ALL_ACTIONS, integrations
from hub.sql import is_postgres


@admin.register(Connection)
class ConnectionAdmin(AskedByFilters):
    list_display = ("name", "label", "tenant", "integration", "account", "gate_state", "retired_at")
    list_filter = (TenantFilter, "integration", ("retired_at", admin.EmptyFieldListFilter))
    list_select_related = ("tenant", "gate")
    search_fields = ("name__startswith", "account__startswith")
    actions = None
    sortable_by = ()
    show_full_result_count = False
    change_form_template = "hub/panel/connection_form.html"
    add_form_template = "hub/panel/connection_add.html"

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """What has history is retired, never deleted (H10)."""
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("secrets")

    @admin.display(description=_("gate"))
    def gate_state(self, row: Connection) -> str:
        return pages.gate_words(row)

    # --- the form ---------------------------------------------------------------------------------

    def _subject(self, request: HttpRequest, obj: Connection | None) -> Connection:
        return (
            obj if obj is not None else Connection(integration=request.GET.get("integration", ""))
        )

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **options: Any
    ) -> Any:
        if obj is None or self.has_change_permission(request, obj):
            options["form"] = form_class(self._subject(request, obj))
        return super().get_form(request, obj, change=change, **options)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return FIXED if obj is not None else ()

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        sets: list[tuple[Any, dict[str, Any]]] = [
            (None, {"fields": PLAIN[:8]}),
            (_("Route"), {"fields": PLAIN[8:]}),
        ]
        if obj is not None and not self.has_change_permission(request, obj):
            return sets
        plan = plan_for(self._subject(request, obj))
        if secrets := [f"secret__{name}" for name in plan.secrets()]:
            sets.insert(1, (_("Credentials"), {"fields": secrets}))
        for group in plan.limits:
            names = [f"limit__{group}__{name}" for name in ("rate", "burst", "none")]
            sets.append(
                (
                    _("Rate limit: %(group)s") % {"group": group},
                    {"fields": [tuple(names), _origin(f"limit__{group}")]},
                )
            )
        for action in plan.actions:
            sets.append(
                (
                    _("All actions")
                    if action == ALL_ACTIONS
                    else _("Action: %(action)s") % {"action": action},
                    {"fields": _number_rows(plan, action), "classes": ["collapse"]},
                )
            )
        return sets

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"integration": request.GET.get("integration", "")}

    def formfield_for_dbfield(self, db_field: Any, request: Any, **options: Any) -> Any:
        if db_field.name == "integration":
            from django import forms

            return forms.ChoiceField(
                label=db_field.verbose_name,
                choices=[(one.label, one.verbose_name) for one in integrations()],
            )
        if db_field.name == "options":
            # Django would compare with a hidden copy of what was shown, not with the row.
            options["show_hidden_initial"] = False
        return super().formfield_for_dbfield(db_field, request, **options)

    # --- pages ------------------------------------------------------------------------------------

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """First which integration: its form asks for what it needs."""
        known = {one.label: one for one in integrations()}
        if request.GET.get("integration") not in known:
            if not self.has_add_permission(request):
                return super().add_view(request, form_url, extra_context)
            context = {
                **self.admin_site.each_context(request),
                "title": _("Which system is it?"),
                "opts": self.opts,
                "integrations": list(known.values()),
            }
            return TemplateResponse(request, "hub/panel/connection_choose.html", context)
        return super().add_view(request, form_url, extra_context)

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **options: Any
    ) -> HttpResponse:
        obj = options.get("obj")
        if obj is not None:
            context |= pages.facts(obj, may_change=self.has_change_permission(request, obj))
        context["show_save_and_add_another"] = False
        return super().render_change_form(request, context, *args, **options)

    def save_model(self, request: HttpRequest, obj: Connection, form: Any, change: bool) -> None:
        """Only changed settings are written, so nothing a worker writes meanwhile can be undone
        (F130).
        """
        if not change:
            form.written(None)
            obj.save()
        else:
            rows = Connection.objects.filter(pk=obj.pk)
            names = form.written(
                (rows.select_for_update(no_key=True) if is_postgres() else rows).get()
            )
            if names:
                obj.save(update_fields=names)
        gate.ensure(obj)


def _origin(prefix: str) -> tuple[str, str]:
    return f"{prefix}__source", f"{prefix}__date"


def _number_rows(plan: Plan, action: str) -> list[Any]:
    names = tuple(f"number__{action}__{name}" for name in plan.numbers(action))
    return [names, _origin(f"number__{action}")]
