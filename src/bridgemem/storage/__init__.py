"""Storage: files and folders that are whole or absent, and what they hold."""
