"""Side by side with the peers: time, memory and accuracy, as ratios of one run."""
