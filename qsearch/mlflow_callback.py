"""A callback that writes every finished trial to MLflow; mlflow is the user's to install.

from qsearch.mlflow_callback import MlflowCallback
qsearch.launch("m.onnx", callbacks=[MlflowCallback(experiment="m")])
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from qsearch.errors import SettingsError
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
        try:
            self._mlflow: Any = import_module("mlflow")
        except ImportError as error:
            raise SettingsError(
                "mlflow is not installed", where="MlflowCallback", fix="pip install mlflow"
            ) from error
        if tracking_uri is not None:
            self._mlflow.set_tracking_uri(tracking_uri)
        if experiment is not None:
            self._mlflow.set_experiment(experiment)

    def __call__(self, trial: Trial) -> None:
        """Write the trial; the search goes on whatever was answered."""
        outcome = trial.outcome
        scores = {k: v for k, v in (outcome.score or {}).items() if v is not None}
        if outcome.seconds is not None:
            scores["seconds"] = outcome.seconds
        with self._mlflow.start_run(run_name=f"trial {trial.number}"):
            self._mlflow.log_params(dict(trial.params))
            # MLflow takes no colon in a name; import paths of own metrics have one.
            self._mlflow.log_metrics({k.replace(":", "."): v for k, v in scores.items()})
            self._mlflow.set_tags(
                {"state": outcome.state, "stage": trial.stage, "config_hash": trial.config_hash}
            )
