"""What happened: the event log, reading it, the named data sets and the simulated world."""
