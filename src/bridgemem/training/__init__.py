"""Training: captured steps, checkpoints."""
