"""Studies: everything that compares, checks or reports whole runs."""
