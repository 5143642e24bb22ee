"""Training: a method on a problem, its log and its checkpoints, from any step on and to the bit."""
