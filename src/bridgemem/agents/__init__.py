"""A run as tools for agents, over the Model Context Protocol."""
