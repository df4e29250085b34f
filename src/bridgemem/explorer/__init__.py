"""The explorer: a page to query, inspect and check a run, served by the same application."""
