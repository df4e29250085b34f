"""How good it is: queries, filters, ranks, metrics, intervals, reports."""
