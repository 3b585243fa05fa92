"""Send the metrics of a run to a tracker of your own: here a file of comma-separated values.

    python examples/track_callback.py runs/tracked

Replace what `Track` does with your tracker's calls: begin or continue, log, finish.
"""

import csv
import sys

from vit import Callback, fit
from vit.config import Config


class Track(Callback):
    """Writes a row for every metric: step, name, value."""

    file = None

    def on_start(self, run):
        self.file = (run.folder.path / "track.csv").open("a", newline="")
        self.rows = csv.writer(self.file)

    def on_log(self, values):
        for key, value in values.items():
            self.rows.writerow([values["step"], key, value])

    def close(self):
        # also called if the run fails before on_start
        if self.file is not None:
            self.file.close()


settings = {"data.source": "scenes", "data.limit": 200, "model.preset": "micro", "train.epochs": 2}
fit(Config.read("quickstart", settings), sys.argv[1], callbacks=[Track()])
