import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

_SEEN = (
    "attempt", "bucket", "candidate", "connection", "decision", "dependency", "evidence", "gate",
    "heartbeat", "installation", "mapping", "note", "operation", "reveal", "reviewcase", "tenant",
)  # fmt: skip
_READER = {*(f"view_{model}" for model in _SEEN), "export_history"}
_AGENT = {*_READER, "work_case", "decide_case"}
_SENIOR = {
    *_AGENT, "judge_case", "discard_doubt", "send_again", "pause_connection", "see_values",
}  # fmt: skip
_ADMIN = {
    *_SENIOR, "see_technical", "add_connection", "change_connection",
    "view_scope", "add_scope", "change_scope", "delete_scope",
    "auth.view_user", "auth.add_user", "auth.change_user",
}  # fmt: skip
ROLES = {
    "reader": _READER,
    "agent": _AGENT,
    "senior": _SENIOR,
    "business admin": _ADMIN,
    "developer": {*_READER, "see_technical"},
}
# Where a permission hangs and what it is called, as Django makes it after all migrations; here it
# is needed before.
_OF_MODEL = {
    "work_case": ("scope", "Can look again, note, take and assign"),
    "judge_case": ("scope", "Can decide cases of judgement and confirm as done"),
    "discard_doubt": ("scope", "Can discard what may have happened"),
    "pause_connection": ("scope", "Can test, pause and resume connections"),
    "see_values": ("scope", "Can show personal values"),
    "see_technical": ("scope", "Can see the raw technical view"),
    "export_history": ("scope", "Can export decisions and history"),
    "decide_case": ("reviewcase", "Can decide review cases"),
    "send_again": ("reviewcase", "Can send an operation again whose fate is unknown"),
}


def make_roles(apps, schema_editor):
    """The five groups with their permissions. A group of that name keeps what it has besides."""
    types = apps.get_model("contenttypes", "ContentType").objects
    permissions = apps.get_model("auth", "Permission").objects
    groups = apps.get_model("auth", "Group").objects
    for role, rights in ROLES.items():
        group = groups.get_or_create(name=role)[0]
        for right in sorted(rights):
            app, _dot, code = right.rpartition(".")
            app = app or "hub"
            verb, _line, named = code.partition("_")
            model, name = _OF_MODEL.get(code, (named, ""))
            name = name or f"Can {verb} {apps.get_model(app, model)._meta.verbose_name}"
            of = types.get_or_create(app_label=app, model=model)[0]
            group.permissions.add(
                permissions.get_or_create(content_type=of, codename=code, defaults={"name": name})[
                    0
                ]
            )


class Migration(migrations.Migration):
    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
        ("hub", "0003_deciding"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Refusal",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField(verbose_name="at")),
                ("user_name", models.CharField(max_length=150, verbose_name="by")),
                (
                    "permission",
                    models.CharField(
                        blank=True, max_length=120, verbose_name="permission that was missing"
                    ),
                ),
                ("method", models.CharField(max_length=10, verbose_name="method")),
                ("path", models.CharField(max_length=300, verbose_name="address")),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="user",
                    ),
                ),
            ],
            options={
                "verbose_name": "refusal",
                "verbose_name_plural": "refusals",
            },
        ),
        migrations.CreateModel(
            name="Reveal",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField(verbose_name="at")),
                ("user_name", models.CharField(max_length=150, verbose_name="by")),
                ("subject", models.CharField(max_length=40, verbose_name="about")),
                ("subject_id", models.BigIntegerField(verbose_name="number")),
                ("fields", models.TextField(blank=True, verbose_name="fields")),
                (
                    "connection",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        to="hub.connection",
                        verbose_name="connection",
                    ),
                ),
                (
                    "operation",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="hub.operation",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="user",
                    ),
                ),
            ],
            options={
                "verbose_name": "reveal",
                "verbose_name_plural": "reveals",
            },
        ),
        migrations.CreateModel(
            name="Scope",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "values",
                    models.BooleanField(
                        default=False, verbose_name="may show personal values here"
                    ),
                ),
                (
                    "connection",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        to="hub.connection",
                        verbose_name="connection",
                    ),
                ),
                (
                    "group",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="scopes",
                        to="auth.group",
                        verbose_name="group",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        to="hub.tenant",
                        verbose_name="tenant",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="scopes",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="user",
                    ),
                ),
            ],
            options={
                "verbose_name": "scope",
                "verbose_name_plural": "scopes",
                "permissions": [
                    ("work_case", "Can look again, note, take and assign"),
                    ("judge_case", "Can decide cases of judgement and confirm as done"),
                    ("discard_doubt", "Can discard what may have happened"),
                    ("pause_connection", "Can test, pause and resume connections"),
                    ("see_values", "Can show personal values"),
                    ("see_technical", "Can see the raw technical view"),
                    ("export_history", "Can export decisions and history"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("group__isnull", False), ("user__isnull", True)),
                            models.Q(("group__isnull", True), ("user__isnull", False)),
                            _connector="OR",
                        ),
                        name="scope_of_one",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("connection__isnull", False), ("tenant__isnull", True)),
                            models.Q(("connection__isnull", True), ("tenant__isnull", False)),
                            _connector="OR",
                        ),
                        name="scope_of_one_place",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("tenant__isnull", False), ("user__isnull", False)),
                        fields=("user", "tenant"),
                        name="scope_user_tenant_once",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("connection__isnull", False), ("user__isnull", False)),
                        fields=("user", "connection"),
                        name="scope_user_connection_once",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("group__isnull", False), ("tenant__isnull", False)),
                        fields=("group", "tenant"),
                        name="scope_group_tenant_once",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("connection__isnull", False), ("group__isnull", False)),
                        fields=("group", "connection"),
                        name="scope_group_connection_once",
                    ),
                ],
            },
        ),
        migrations.RunPython(make_roles, migrations.RunPython.noop),
    ]
