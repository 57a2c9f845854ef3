"""Parts of `cluster_simulation.py`: a clock, service times, and roles that only wait."""
