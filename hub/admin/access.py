"""Users, groups, what they may see, and who was shown values or refused. A user who decided
something has history, so users are switched off, not deleted.

Who is no superuser gives nobody more than they have: no right, no tenant and no connection besides
their own.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, Permission, User
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from hub import access
from hub.admin.base import ReadOnlyAdmin, ScopedAdmin
from hub.admin.operation import story_link
from hub.models import Connection, Refusal, Reveal, Scope, Tenant
from hub.panel import words

admin.site.unregister([User, Group])


class ScopeForm(forms.ModelForm):
    """One place: a tenant or a connection."""

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        if (given.get("tenant") is None) == (given.get("connection") is None):
            raise forms.ValidationError(_("Choose either a tenant or one of its connections."))
        return given


class ScopeInline(admin.TabularInline):
    """What a person or a group may see, of what the giver sees."""

    model = Scope
    form = ScopeForm
    extra = 0

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        # To show personal values can be given on by those who may everywhere they see.
        values = ("values",) if request.user.has_perm(access.SEE_VALUES) else ()
        return ("tenant", "connection", *values)

    def get_queryset(self, request: HttpRequest) -> Any:
        return access.visible(request.user, super().get_queryset(request))

    def get_min_num(self, request: HttpRequest, obj: Any = None, **options: Any) -> int:
        # Whoever sees nothing is seen by superusers only, so nobody else could go on with them.
        return 0 if access.sees_all(request.user) or obj is not None else 1

    def get_formset(self, request: HttpRequest, obj: Any = None, **options: Any) -> Any:
        return super().get_formset(request, obj, validate_min=True, **options)

    def formfield_for_foreignkey(self, db_field: Any, request: Any, **options: Any) -> Any:
        seen = access.sight(request.user)
        if not seen.all and db_field.name == "tenant":
            options["queryset"] = Tenant.objects.filter(pk__in=seen.tenants)
        elif not seen.all and db_field.name == "connection":
            options["queryset"] = Connection.objects.filter(pk__in=seen.connections)
        field = super().formfield_for_foreignkey(db_field, request, **options)
        if field is not None:
            field.widget.can_add_related = field.widget.can_change_related = False
            field.widget.can_view_related = False
        return field


def _rights(permissions: Any) -> set[str]:
    return {
        f"{app}.{code}"
        for app, code in permissions.values_list("content_type__app_label", "codename")
    }


def givable(user: Any) -> list[int]:
    """The groups somebody may put others into: none that has a right or a place they lack."""
    own, seen = user.get_all_permissions(), access.sight(user)
    return [
        group.pk
        for group in Group.objects.all()
        if _rights(Permission.objects.filter(group=group)) <= own
        and access.sight_of(group).within(seen)
    ]


@admin.register(User)
class HubUserAdmin(ScopedAdmin, UserAdmin):
    """As Django's, without deleting, with what somebody may see."""

    inlines = (ScopeInline,)
    list_display = ("username", "email", "roles", "is_staff", "is_active", "last_login")
    list_filter = ("is_staff", "is_active")
    filter_horizontal = ()

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody changes those who may more than they do: not their password either."""
        if not super().has_change_permission(request, obj):
            return False
        if obj is None or request.user.is_superuser:
            return True
        return not obj.is_superuser and (
            obj.get_all_permissions() <= request.user.get_all_permissions()
        )

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        sets = super().get_fieldsets(request, obj)
        if obj is None or request.user.is_superuser:
            return sets
        kept = {"is_superuser", "user_permissions"}
        return [
            (
                title,
                {**given, "fields": tuple(one for one in given["fields"] if one not in kept)},
            )
            for title, given in sets
        ]

    def formfield_for_manytomany(self, db_field: Any, request: Any, **options: Any) -> Any:
        if db_field.name == "groups" and not request.user.is_superuser:
            options["queryset"] = Group.objects.filter(pk__in=givable(request.user))
        field = super().formfield_for_manytomany(db_field, request, **options)
        if field is not None:
            field.widget.can_add_related = False
        return field

    @admin.display(description=_("roles"))
    def roles(self, row: User) -> str:
        return ", ".join(row.groups.values_list("name", flat=True)) or "–"


@admin.register(Group)
class HubGroupAdmin(ScopedAdmin, GroupAdmin):
    """As Django's, without deleting: who had which right belongs to the history of decisions."""

    inlines = (ScopeInline,)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Scope)
class ScopeAdmin(ReadOnlyAdmin):
    """To be read here; given on the page of a user or a group."""

    list_display = ("id", "user", "group", "tenant", "connection", "values")
    list_select_related = ("user", "group", "tenant", "connection")
    heavy = ("connection__secrets",)


@admin.register(Reveal)
class RevealAdmin(ReadOnlyAdmin):
    list_display = ("id", "at", "user_name", "subject", "subject_id", "story", "connection")
    list_select_related = ("connection",)
    heavy = ("connection__secrets", "fields")
    exclude = ("operation", "user")
    readonly_fields = ("story",)

    @admin.display(description=_("operation"))
    def story(self, row: Reveal) -> SafeString | str:
        return story_link(row.operation_id)


@admin.register(Refusal)
class RefusalAdmin(ReadOnlyAdmin):
    list_display = ("id", "at", "user_name", "lacked", "method", "path")
    exclude = ("user", "permission")
    readonly_fields = ("lacked",)

    @admin.display(description=_("permission that was missing"))
    def lacked(self, row: Refusal) -> str:
        return words.permission(row.permission) if row.permission else "–"
