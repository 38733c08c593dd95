"""The integration hub: Django project and, at the same time, its one app (label "hub")."""
