"""Engines that sort the events of a corpus too large for memory, and the one kernel that reads them."""
