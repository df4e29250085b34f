"""Studies: whatever compares, checks or reports whole runs."""
