"""Residuals: the two residuals, their selection, and the one scoring path."""
