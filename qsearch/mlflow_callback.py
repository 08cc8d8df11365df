"""A callback that writes every finished trial to MLflow; mlflow is the user's to install.

from qsearch.mlflow_callback import MlflowCallback
qsearch.launch("m.onnx", callbacks=[MlflowCallback(experiment="m")])
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from compiler.errors import raised_as
from qsearch.errors import SettingsError
from qsearch.run.tracking import figures_of, tags_of
from qsearch.store.records import Trial


class MlflowCallback:
    """One MLflow run per trial: parameters, scores, state, seconds.

    Args:
        experiment: name of the MLflow experiment; None is the current one.
        tracking_uri: of the MLflow server or folder; None is MLflow's own choice.
    Raises:
        SettingsError: mlflow is not installed.
    """

    def __init__(self, experiment: str | None = None, tracking_uri: str | None = None) -> None:
        what = "mlflow is not installed"
        fix = "pip install mlflow"
        with raised_as(SettingsError, what, ImportError, where="MlflowCallback", fix=fix):
            self._mlflow: Any = import_module("mlflow")
        if tracking_uri is not None:
            self._mlflow.set_tracking_uri(tracking_uri)
        if experiment is not None:
            self._mlflow.set_experiment(experiment)

    def __call__(self, trial: Trial) -> None:
        """Write the trial; the search goes on whatever was answered."""
        with self._mlflow.start_run(run_name=f"trial {trial.number}"):
            self._mlflow.log_params(dict(trial.params))
            self._mlflow.log_metrics(figures_of(trial))
            self._mlflow.set_tags(tags_of(trial))
