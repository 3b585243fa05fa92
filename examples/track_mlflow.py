"""Send the metrics of a run to MLflow; a resumed run continues there.

pip install mlflow
MLFLOW_TRACKING_URI=... python examples/track_mlflow.py runs/tracked [--resume]
"""

import sys
import time

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from vit import Callback, fit
from vit.config import Config


class MLflow(Callback):
    """Writes to the experiment "vit"; a client has no active run, so yours stay untouched."""

    name = "mlflow"
    id = None
    run = None

    def on_start(self, run):
        self.run = run
        self.client = MlflowClient()
        if self.id is not None:
            self.client.update_run(self.id, status="RUNNING")
            return
        experiment = self.client.get_experiment_by_name("vit")
        number = experiment.experiment_id if experiment else self.client.create_experiment("vit")
        self.id = self.client.create_run(number, run_name=run.folder.path.name).info.run_id
        for section, settings in run.config.to_dict().items():
            params = [Param(f"{section}.{key}", str(value)) for key, value in settings.items()]
            self.client.log_batch(self.id, params=params)

    def on_log(self, values):
        now = round(time.time() * 1000)
        metrics = [Metric(key, value, now, values["step"]) for key, value in values.items()]
        self.client.log_batch(self.id, metrics)

    def close(self):
        # also called if the run fails before on_start
        if self.run is not None:
            is_finished = self.run.step == self.run.total_steps
            self.client.set_terminated(self.id, "FINISHED" if is_finished else "FAILED")

    def state_dict(self):
        return {"id": self.id}

    def load_state_dict(self, state):
        self.id = (state or {}).get("id")


settings = {"data.source": "scenes", "data.limit": 200, "model.preset": "micro", "train.epochs": 2}
resume = "--resume" in sys.argv
fit(Config.read("quickstart", settings), sys.argv[1], callbacks=[MLflow()], resume=resume)
