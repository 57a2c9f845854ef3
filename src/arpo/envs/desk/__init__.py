"""Desk: a small desktop in this process, deterministic, with real windows, applications and tasks."""
