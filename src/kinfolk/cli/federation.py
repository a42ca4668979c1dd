"""The commands of a federation: those of its operator, and those of a site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kinfolk.cli.options import Trust, one_sentence

federation = typer.Typer(help="Run a federation: sites keep their rows.", no_args_is_help=True, rich_markup_mode=None)
site = typer.Typer(help="Take part in a federation, beside your own rows.", no_args_is_help=True, rich_markup_mode=None)
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the federation.")]
Clip = Annotated[float | None, typer.Option(help="With --noise: the largest norm of what a node sends.")]
NoiseScale = Annotated[float | None, typer.Option(help="Deviation of noise on what leaves a node. [default: none]")]
AttackedNodes = Annotated[int, typer.Option(min=1, help="How many nodes to attack: those with fewest rows.")]
Trials = Annotated[int, typer.Option(min=4, help="How often each attack is tried.")]
SiteFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the site.")]


@federation.command()
@one_sentence
def new(
    folder: Folder,
    like: Annotated[Path, typer.Option(help="A table with the columns of the sites; none of its rows is kept.")],
    sites: Annotated[str, typer.Option(metavar="A,B", help="Names of the sites.")],
    target: Annotated[str, typer.Option(help="Column to predict.")],
    address: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where sites reach the coordinator.")] = (
        "127.0.0.1:9092"
    ),
    node: Annotated[str | None, typer.Option(help="Column with the node of a row. [default: a site is a node]")] = None,
    edges: Annotated[Path | None, typer.Option(help="Pairs of nodes. [default: all sites with each other]")] = None,
    features: Annotated[str | None, typer.Option(metavar="A,B", help="Columns to predict from.")] = None,
    categorical: Annotated[str | None, typer.Option(metavar="A,B", help="Numbers that name categories.")] = None,
    algorithm: Annotated[str, typer.Option(help="GTVMin, FedRelax, FedAvg, DFL, ...")] = "GTVMin",
    lam: Annotated[float | None, typer.Option(min=0.0, help="λ: how strongly neighbours pull. [default: 1]")] = None,
    model: Annotated[str, typer.Option(help="For FedRelax: linear, tree, forest or boosting.")] = "linear",
    compare: Annotated[str, typer.Option(metavar="A,B", help="What is run beside: alone, pooled, none.")] = "alone",
    rounds: Annotated[int, typer.Option(min=1, help="At most so many rounds.")] = 100,
    test: Annotated[float, typer.Option(help="Share of rows that sites hold out.")] = 0.2,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random draws.")] = 0,
    fit: Annotated[bool, typer.Option("--fit", help="Learn together from tables, as kinfolk fit does.")] = False,
    secure: Annotated[bool, typer.Option("--secure", help="With --fit: mask sums of single sites.")] = False,
    clip: Clip = None,
    noise: Annotated[
        float | None, typer.Option(help="Deviation of noise that every site adds. [default: none]")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="With --noise: the largest ε that a site spends.")] = None,
) -> None:
    """Make a federation: its agreement, certificates and keys."""
    from kinfolk.cli.federating import new_federation

    options: dict[str, Any] = {
        "compare": compare,
        "rounds": rounds,
        "test": test,
        "seed": seed,
        "model": model,
        "secure": secure,
    }
    options["job"] = "fit" if fit else "run"
    demanded = {"clip": clip, "scale": noise, "epsilon": epsilon}
    options["noise"] = {name: value for name, value in demanded.items() if value is not None}
    new_federation(folder, like, sites, target, address, node, edges, features, categorical, algorithm, lam, options)


@federation.command()
@one_sentence
def invite(
    folder: Folder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the site.")],
    out: Annotated[Path | None, typer.Option(help="File for the invitation. [default: NAME.invite]")] = None,
    days: Annotated[float, typer.Option(min=0.0, help="Days in which it can be used for the first time.")] = 30.0,
) -> None:
    """Write the invitation of a site: a secret file for its owner."""
    from kinfolk.cli.federating import invite_site

    invite_site(folder, name, out, days)


@federation.command()
@one_sentence
def run(
    folder: Folder,
    keep_sites: Annotated[bool, typer.Option("--keep-sites", help="Let the sites wait for another run.")] = False,
) -> None:
    """Wait for all sites, and run what was agreed on; the same command resumes."""
    from kinfolk.cli.federating import run_federation

    run_federation(folder, keep_sites)


@federation.command("fit")
@one_sentence
def fit_tables(
    folder: Folder,
    keep_sites: Annotated[bool, typer.Option("--keep-sites", help="Let the sites wait for another run.")] = False,
) -> None:
    """Learn together from the tables of all sites: blend, comparison, judgement."""
    from kinfolk.cli.federating import run_federation

    run_federation(folder, keep_sites, job="fit")


@federation.command()
@one_sentence
def status(folder: Folder) -> None:
    """Show who is there, and how far a run is."""
    from kinfolk.cli.federating import show_status

    show_status(folder)


@federation.command()
@one_sentence
def watch(
    folder: Folder,
    host: Annotated[str, typer.Option(help="Address to listen on; the default can be reached from here alone.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes one that is free.")] = 9093,
) -> None:
    """Show a run in the browser while it goes on, until Ctrl-C."""
    from kinfolk.cli.federating import watch_federation

    watch_federation(folder, host, port)


@federation.command()
@one_sentence
def stop(folder: Folder) -> None:
    """Stop a run; kinfolk federation run goes on from there."""
    from kinfolk.cli.federating import stop_federation

    stop_federation(folder)


@federation.command("audit")
@one_sentence
def audit_all(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with NAME.invite, NAME.csv and site NAME.")],
    clip: Clip = None,
    noise: NoiseScale = None,
    nodes: AttackedNodes = 3,
    trials: Trials = 100,
) -> None:
    """Attack what all sites here have sent; writes audit.html."""
    from kinfolk.cli.federating import audit_federation

    audit_federation(folder, (clip, noise), nodes, trials)


@federation.command()
@one_sentence
def demo(
    out: Annotated[Path, typer.Option(help="Folder for all of it.")] = Path("out/federation"),
) -> None:
    """Run a federation of four sites on this machine, and kill one on the way."""
    from kinfolk.cli.federation_demo import demonstrate

    demonstrate(out)


@site.command()
@one_sentence
def join(
    invitation: Annotated[Path, typer.Argument(metavar="INVITE", help="The file that the operator has sent.")],
    data: Annotated[Path, typer.Option(help="Your table; it is read here, and stays here.")],
    folder: Annotated[Path | None, typer.Option(help="Folder for keys, state and models. [default: NAME-site]")] = None,
    model: Annotated[str | None, typer.Option(help="Your own model, for FedRelax; or file.py:Name.")] = None,
    way: Annotated[str, typer.Option(help="direct, or supernode (of Flower).")] = "direct",
    patience: Annotated[float, typer.Option(min=1.0, help="Seconds to wait for the coordinator.")] = 600.0,
    clip: Clip = None,
    noise: NoiseScale = None,
    record: Annotated[bool, typer.Option("--record", help="Keep what was asked, for kinfolk site audit.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Agree to what will leave, without being asked.")] = False,
) -> None:
    """Show what will leave, ask, then take part until the federation ends."""
    from kinfolk.cli.federating import join_federation

    join_federation(invitation, data, folder, model, way, patience, (clip, noise), record, yes)


@site.command("audit")
@one_sentence
def audit_one(
    invitation: Annotated[Path, typer.Argument(metavar="INVITE", help="The invitation of the site.")],
    data: Annotated[Path, typer.Option(help="The table it has taken part with.")],
    folder: Annotated[Path | None, typer.Option(help="Folder of the site. [default: NAME-site]")] = None,
    model: Annotated[str | None, typer.Option(help="Your own model, as when joining.")] = None,
    clip: Clip = None,
    noise: NoiseScale = None,
    nodes: AttackedNodes = 3,
    trials: Trials = 100,
) -> None:
    """Measure what others could tell of your rows; writes audit.html."""
    from kinfolk.cli.federating import audit_site

    audit_site(invitation, data, folder, model, (clip, noise), nodes, trials)


@site.command()
@one_sentence
def leave(folder: SiteFolder) -> None:
    """Stop taking part: the key is forgotten, models and log stay."""
    from kinfolk.cli.federating import leave_federation

    leave_federation(folder)


@site.command()
@one_sentence
def keys(folder: SiteFolder) -> None:
    """Show the fingerprints of the keys that the site knows."""
    from kinfolk.cli.federating import show_keys

    show_keys(folder)


@site.command()
@one_sentence
def sent(folder: SiteFolder) -> None:
    """Show what has left the site, and to whom."""
    from kinfolk.cli.federating import show_sent

    show_sent(folder)


@site.command()
@one_sentence
def predict(
    folder: SiteFolder,
    table: Annotated[Path, typer.Argument(help="A table with the features, and the node if sites have several.")],
    out: Annotated[Path | None, typer.Option(help="File for the predictions. [default: printed as CSV]")] = None,
    trust: Trust = None,
) -> None:
    """Predict rows with the models of the site."""
    from kinfolk.cli.federating import predict_rows

    predict_rows(folder, table, out, trust)
