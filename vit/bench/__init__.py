"""`vit bench`: our training step against the machine's own limit, against peers, and against itself with parts taken away."""
