"""The ServerApp coordinates the federation whose plan is in the folder of the run config."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from kinfolk.federation.flower.coordinator import coordinate

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the plan."""
    config = context.run_config
    coordinate(grid, Path(str(config["folder"])), end_sites=bool(config["end-sites"]))
