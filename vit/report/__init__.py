"""What a run, finished or not, shows: its pictures, its page, and a comparison with other runs."""
