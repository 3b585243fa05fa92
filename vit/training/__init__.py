"""Training: the loop, the objectives, optimizer and schedule, and saving and resuming a run."""
