"""Episodic black-box policy search that finds out which parameters matter."""
