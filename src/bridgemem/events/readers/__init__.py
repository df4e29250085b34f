"""Readers: tables, lines and published layouts as events."""
