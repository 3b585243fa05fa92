"""The training of a model: a generator of steps, its optimizer and schedule, and what makes a run survive."""
