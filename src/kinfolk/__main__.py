"""``python -m kinfolk`` is ``kinfolk``."""

from kinfolk.cli import app

app()
