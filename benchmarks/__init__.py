"""What the method costs: measured beside plain references, the paper's seconds, and counted floors."""
