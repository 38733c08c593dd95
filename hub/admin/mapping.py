"""Which local thing is which remote thing."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from hub.admin import search
from hub.admin.base import ConnectionFilter, ReadOnlyAdmin, TenantFilter
from hub.models import Mapping
from hub.panel.values import shown_json


@admin.register(Mapping)
class MappingAdmin(ReadOnlyAdmin):
    list_display = (
        "id", "object_type", "source_system", "source_id", "remote_ref", "tenant", "connection",
        "version", "updated_at", "deleted_at",
    )  # fmt: skip
    list_filter = (TenantFilter, ConnectionFilter)
    list_select_related = ("tenant", "connection")
    search_fields = ("pk",)
    search_help_text = _("Exact: source id, or the id over there.")
    heavy = ("values", "connection__secrets")
    values = ("shown_values",)
    exclude = ("values",)
    readonly_fields = ("shown_values",)

    def scans(self, request: HttpRequest) -> bool:
        """The connection has its index; the tenant alone has none."""
        return super().scans(request) and "connection" not in request.GET

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        return queryset.filter(pk__in=search.mappings(term)), False

    @admin.display(description=_("values last seen there"))
    def shown_values(self, row: Mapping) -> SafeString:
        return shown_json(row.values)
