"""Figures on a real cluster, each against the same thing without Tower in the same run."""
