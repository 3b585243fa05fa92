"""What a run shows, finished or not: its pictures, its page, and itself beside other runs."""
