"""Engines: who sorts the events of a corpus too large for memory; the kernel that reads them is the same for all."""
