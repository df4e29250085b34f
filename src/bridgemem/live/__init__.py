"""What keeps growing: the event store, forecasts over it, and runs brought up to date."""
