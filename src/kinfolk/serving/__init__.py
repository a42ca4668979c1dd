"""Predictions over HTTP: a service around a finished run. It needs ``pip install "kinfolk[serve]"``."""
