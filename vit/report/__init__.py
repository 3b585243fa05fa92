"""What a finished run shows: its pictures."""
