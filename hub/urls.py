"""Every address the hub answers to."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path

from hub.site import start

handler400 = "hub.panel.errors.bad_request"
handler403 = "hub.panel.errors.denied"
handler404 = "hub.panel.errors.not_found"
handler500 = "hub.panel.errors.server_error"

urlpatterns: list[URLPattern | URLResolver] = [
    path("", start, name="start"),
    path("i18n/", include("django.conf.urls.i18n")),
    path("health/", include("hub.health_views")),
    path("admin/", admin.site.urls),
]
