"""Who computes what in the next step, who waits, who has to give way, and what a step's result means."""
