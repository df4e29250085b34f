"""The explorer: a page on which a run is asked, looked into and judged, served by the same application."""
