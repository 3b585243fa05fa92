"""`vit bench`: our training step against the machine's own limit, against peers, and against itself without each technique."""
