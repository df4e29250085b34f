"""Memory on disk: columns, memory maps and how they are written."""
