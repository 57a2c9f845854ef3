"""Clusters: the placement of its servers, hosts and learner ranks by Ray."""
