"""What a pair remembers: the scan kernel and the index of ordered pairs."""
