"""Training of a method on a problem, with its log and its checkpoints. It can resume at any step, exact to the bit."""
