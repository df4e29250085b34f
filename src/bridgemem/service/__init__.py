"""The service: forecasts over HTTP, from a memory that grows while it is asked."""
