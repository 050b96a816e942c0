"""How a network is trained: the plan, the steps, and checkpoints to go on from."""
