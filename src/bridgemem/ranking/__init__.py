"""Ranking: filters, ranks, metrics, intervals."""
