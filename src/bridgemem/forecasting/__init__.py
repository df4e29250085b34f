"""Forecasting: queries by name, probabilities, reasons."""
