"""Desk: a small deterministic desktop inside the process, with windows, applications and tasks."""
