"""Runs in experiment trackers: ``TensorBoard`` and ``MLflow`` are callbacks of ``fit``, and log finished runs."""

from kinfolk.tracking.mlflow_tracker import MLflow
from kinfolk.tracking.tensorboard_tracker import TensorBoard

__all__ = ["MLflow", "TensorBoard"]
