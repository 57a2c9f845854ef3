"""Clusters: the plan of a run, and the placement of its servers, hosts and learner ranks by Ray."""
