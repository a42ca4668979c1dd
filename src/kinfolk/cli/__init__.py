"""The command line. Slow imports wait until a command needs them, so that ``kinfolk --help`` answers at once."""

from kinfolk.cli.main import app

__all__ = ["app"]
