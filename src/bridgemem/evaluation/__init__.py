"""Evaluation: a run measured on a split, and its figures as records and tables."""
