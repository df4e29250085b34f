"""What the method costs: measured next to plain references, the paper's seconds, and counted floors."""
