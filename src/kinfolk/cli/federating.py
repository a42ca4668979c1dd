"""What the commands of a federation do."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast, get_args

import pandas
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from kinfolk.checks import InputError, comma_list, installed
from kinfolk.cli.jobs import write_table
from kinfolk.cli.printing import print_exact, shown
from kinfolk.report import privacy_words, words
from kinfolk.report.audit import AuditFacts, write_audit
from kinfolk.report.federation import FederationFacts, write_federation, write_fitted
from kinfolk.tables import read_table
from kinfolk.tables.own_code import code_file, from_file

PAGE, AUDIT_PAGE = "report.html", "audit.html"
ClipAndNoise = tuple[float | None, float | None]
EVERY = 10.0  # seconds between two lines where there is no terminal


def check_installed() -> None:
    """Refuse where the packages of a federation are not installed."""
    for package in ("flwr", "cryptography"):
        installed(package, "a federation", "flower")


# ---------------------------------------------------------------------- the operator


def new_federation(
    folder: Path, like: Path, sites: str, target: str, address: str, node: str | None, edges: Path | None,
    features: str | None, categorical: str | None, algorithm: str, lam: float | None, options: dict[str, Any],
) -> None:  # fmt: skip
    """Make the folder of a federation; of the table only names, types and categories are taken."""
    check_installed()
    from kinfolk.federation.agreement import Agreement
    from kinfolk.federation.named import DEFAULT
    from kinfolk.federation.operating import make_federation
    from kinfolk.federation.site_table import agreed_columns

    columns = agreed_columns(read_table(like), node, target, comma_list(features or ""), comma_list(categorical or ""))
    table: dict[str, Any] = dict(DEFAULT) if algorithm == DEFAULT["type"] else {"type": algorithm}
    if lam is not None:
        table["lam"] = lam
    compare = tuple(name for name in comma_list(options.pop("compare")) if name != "none")
    agreement = Agreement(
        folder.resolve().name, address, comma_list(sites), target, columns.features, node, columns.classes, table,
        compare=compare, **options,
    )  # fmt: skip
    make_federation(folder, agreement, edges)
    print_exact(f"{folder / 'federation.toml'}: what the sites agree on. Read it, and change it if need be.")
    print_exact("Then, for every site:")
    for name in agreement.sites:
        print_exact("  " + shlex.join(["kinfolk", "federation", "invite", str(folder), name]))
    print_exact(
        "and when all have their invitations: " + shlex.join(["kinfolk", "federation", agreement.job, str(folder)])
    )


def invite_site(folder: Path, name: str, out: Path | None, days: float) -> None:
    """Write the invitation of a site."""
    check_installed()
    from kinfolk.federation.invitation import SUFFIX
    from kinfolk.federation.operating import invitation_for

    path = Path(f"{name}{SUFFIX}") if out is None else out
    invitation = invitation_for(folder, name, path, days)
    print_exact(f"{path}: for the owner of site {name!r} alone, until {invitation.expires:%Y-%m-%d}. There:")
    print_exact("  " + shlex.join(["kinfolk", "site", "join", path.name, "--data", "TABLE"]))


def run_federation(folder: Path, keep_sites: bool, job: str = "run") -> None:
    """Run a federation to its end, show it meanwhile, and write its page."""
    check_installed()
    from kinfolk.federation.agreement import Agreement
    from kinfolk.federation.operating import operate

    agreed = Agreement.read(folder).job
    if agreed != job:
        raise InputError(f"Expected kinfolk federation {agreed}, which was agreed on, got {job}: use that command.")
    console = Console()
    try:
        with live_status(folder, console) as look:
            operate(folder, end_sites=not keep_sites, look=look)
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on from there.", file=sys.stderr)
        raise typer.Exit(130) from None
    (print_fitted if job == "fit" else print_outcome)(folder, console)


def print_fitted(folder: Path, console: Console) -> None:
    """Print the comparison and the judgement of sites that have learnt together, and write the page."""
    from kinfolk.federation.agreement import Agreement
    from kinfolk.federation.operating import read_fitted, read_members

    found = read_fitted(folder)
    table = Table(title=f"{len(found['nodes']):,} nodes", title_justify="left")
    table.add_column("method", ratio=1)
    for column in ("error", "weight"):
        table.add_column(column, justify="right", no_wrap=True)
    for line in found["leaderboard"]:
        table.add_row(
            shown(words.title(line["name"])), words.number(line["error"], 4), words.share_of_one(line["weight"])
        )
    console.print(table)
    console.print(shown(found["judgement"]))
    for note in found["notes"]:
        console.print(shown(note))
    console.print(f"{found['exchanges']} exchanges with every site.", highlight=False)
    page = write_fitted(Agreement.read(folder).name, found, read_members(folder), folder / PAGE)
    console.print("The page:", shown(page, style="bold"))


def print_outcome(folder: Path, console: Console) -> None:
    """Print how a run has ended, and write its page."""
    facts = federation_facts(folder)
    console.print(_errors(facts))
    console.print(words.federation_verdict(facts.errors) + ".", highlight=False)
    console.print(f"The run {facts.stopped}.", highlight=False)
    console.print("The page:", shown(write_federation(facts, folder / PAGE), style="bold"))


def federation_facts(folder: Path) -> FederationFacts:
    """What the coordinator knows of a run that has ended."""
    from kinfolk.federation.agreement import Agreement
    from kinfolk.federation.flower.plan import Plan
    from kinfolk.federation.operating import history_of, read_members, read_outcome, read_status
    from kinfolk.federation.reading import who_reads

    agreement, plan = Agreement.read(folder), Plan.read(folder)
    status, outcome = read_status(folder), read_outcome(folder)
    algorithms = agreement.algorithms()
    main = algorithms["tailored"]
    histories = {name: history_of(status.rows, name) for name in algorithms}
    return FederationFacts(
        agreement.name, agreement.target, agreement.classes, type(main).__name__, read_members(folder), histories,
        outcome["stopped"], outcome["notes"], who_reads(main, agreement.problem(plan.graph)),
    )  # fmt: skip


@contextmanager
def live_status(folder: Path, console: Console) -> Iterator[Any]:
    """A table that follows a run on a terminal; lines now and then elsewhere."""
    from kinfolk.federation.operating import read_members

    if not console.is_terminal:
        yield _Lines(console)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda status: live.update(status_table(status, read_members(folder), _sites(folder)), refresh=True)


class _Lines:
    """A line when something has changed, and every ten seconds."""

    def __init__(self, console: Console) -> None:
        self.console, self.before, self.when = console, "", 0.0

    def __call__(self, status: Any) -> None:
        phase = f"{status.phase} {status.run}"
        if phase != self.before or time.monotonic() > self.when + EVERY:
            self.before, self.when = phase, time.monotonic()
            self.console.print(_line(status), highlight=False)


def _line(status: Any) -> str:
    there = f"{len(status.online)} sites online" if status.online else "no site online"
    if not status.rows:
        return f"{status.phase}: {there}"
    last = status.last
    numbers = [f"{name} {words.number(last[name])}" for name in ("residual", "error") if last.get(name) is not None]
    return f"{status.phase}: {there}; {status.run}, round {last['round']:.0f}" + "".join(
        f", {each}" for each in numbers
    )


def _sites(folder: Path) -> tuple[str, ...]:
    from kinfolk.federation.agreement import Agreement

    return Agreement.read(folder).sites


def status_table(status: Any, members: dict[str, dict[str, Any]], sites: tuple[str, ...]) -> Group:
    """Who is there, and how far the run is."""
    table = Table()
    for name, justify in (("site", "left"), ("state", "left"), ("nodes", "right"), ("key", "left")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for name in sites:
        known = members.get(name, {})
        state = shown("online", style="green") if name in status.online else shown("away", style="red")
        table.add_row(shown(name), state, f"{known['nodes']:,}" if known else "", shown(known.get("key", "")))
    return Group(shown(_line(status)), table)


def _errors(facts: FederationFacts) -> Table:
    table = Table(title=f"{len(facts.sites)} sites, {facts.algorithm}", title_justify="left")
    table.add_column("method")
    table.add_column(words.federation_measure(bool(facts.classes)), justify="right")
    for title, error in words.federation_errors(facts.errors):
        table.add_row(title, error)
    return table


def show_status(folder: Path) -> None:
    """Print what is known of a federation."""
    check_installed()
    from kinfolk.federation.operating import read_members, read_status

    status = read_status(folder)
    Console().print(status_table(status, read_members(folder), _sites(folder)))
    if status.why:
        print_exact(status.why)


def watch_federation(folder: Path, host: str, port: int) -> None:
    """Serve the live page of a federation until the process is told to stop."""
    check_installed()
    from kinfolk.federation.watching import watch
    from kinfolk.serving.ports import is_loopback, open_port

    listening = open_port(host, port)
    where = f"[{host}]" if ":" in host else host
    print_exact(f"Watching {folder} at http://{where}:{listening.getsockname()[1]} (Ctrl-C stops it).")
    if not is_loopback(host):
        print("kinfolk: whoever can reach this address can watch: there is no password and no TLS.", file=sys.stderr)
    watch(folder, listening, host)


def stop_federation(folder: Path) -> None:
    """Stop a run."""
    check_installed()
    from kinfolk.federation.operating import stop_operation

    print_exact("Stopped." if stop_operation(folder) else "Nothing runs there.")


# ---------------------------------------------------------------------- a site


def join_federation(
    invitation: Path, data: Path, folder: Path | None, model: str | None, way: str, patience: float,
    clip_and_noise: ClipAndNoise, record: bool, yes: bool,
) -> None:  # fmt: skip
    """Show what will leave, ask once, and take part until the federation ends."""
    check_installed()
    from kinfolk.federation.flower.site import Way
    from kinfolk.federation.site_run import Care

    if way not in get_args(Way):
        raise InputError(f"Expected a way among {', '.join(get_args(Way))}, got {way!r:.40}.")
    care = Care(_noise(clip_and_noise), record)
    participant = _participant(invitation, data, folder, model, care)
    if not participant.has_consent:
        _show_leaving(participant)
        if not yes and not typer.confirm("Take part?"):
            raise typer.Exit(1)
        participant.consent()
    kept = participant.run(cast(Way, way), patience, print_exact)
    if kept is None:
        print_exact("It has ended before there were models.")
    else:
        print_exact(f"{kept}: the models of this site. Predict with:")
        print_exact("  " + shlex.join(["kinfolk", "site", "predict", str(participant.folder), "TABLE"]))
    page = participant.folder / PAGE
    if page.exists():
        print_exact(f"{page}: the page of this site, with its rows. It is for its owner.")


def _participant(invitation: Path, data: Path, folder: Path | None, model: str | None, care: Any) -> Any:
    """The site of an invitation, with its table."""
    from kinfolk.federation.invitation import Invitation
    from kinfolk.federation.taking_part import Participant

    invited = Invitation.read(invitation)
    place = Path(f"{invited.site}-site") if folder is None else folder
    own = model if model is None or code_file(model) is None else from_file(model, "a model", [])
    return Participant.of(invited, data, place, own, care)


def _noise(clip_and_noise: ClipAndNoise) -> Any:
    """Noise, if both of its numbers are given."""
    from kinfolk.engine.noise import Noise

    clip, scale = clip_and_noise
    if (clip is None) != (scale is None):
        raise InputError("Expected --clip and --noise together, got one of them: pass both, or neither.")
    return None if clip is None or scale is None else Noise(clip, scale)


def _show_leaving(participant: Any) -> None:
    from kinfolk.federation.keys import fingerprint_of

    agreement = participant.invitation.agreement
    console = Console()
    contact = participant.invitation.contact
    console.print(shown(f"Federation {agreement.name!r}, site {participant.invitation.site!r}: {participant.size}."))
    console.print(shown(f"Coordinator: {contact.address}, key {fingerprint_of(bytes.fromhex(contact.coordinator))}."))
    console.print("Rows stay here. What will leave:", highlight=False)
    for what, sentences in participant.leaving().items():
        console.print(shown(f"{what}:", style="bold"))
        for sentence in sentences:
            console.print(shown(f"  {sentence}"))


def leave_federation(folder: Path) -> None:
    """Stop taking part."""
    check_installed()
    from kinfolk.federation.taking_part import leave

    leave(folder)
    print_exact("Left. The key to sign in is forgotten; models and left.csv stay in the folder.")


def show_keys(folder: Path) -> None:
    """Print the fingerprints of the keys that a site knows."""
    check_installed()
    from kinfolk.federation.taking_part import known_keys

    table = Table(title="Compare these with the other sites, on the telephone", title_justify="left")
    for name in ("site", "key"):
        table.add_column(name, no_wrap=True)
    for name, key in known_keys(folder).items():
        table.add_row(shown(name), shown(key))
    Console().print(table)


def show_sent(folder: Path) -> None:
    """Print what has left a site."""
    from kinfolk.federation.ledger import sent_in_all

    table = Table(title="What has left this site", title_justify="left")
    for name in ("to", "what"):
        table.add_column(name)
    for name in ("messages", "numbers", "size"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in sent_in_all(folder).itertuples():
        table.add_row(shown(row.to), shown(row.what), f"{row.messages:,}", f"{row.numbers:,}", words.size(row.bytes))
    Console().print(table)
    _show_spent(folder)


def _show_spent(folder: Path) -> None:
    """Print what noise promises, if there was some."""
    from kinfolk.federation.spending import spent

    _print_promise(spent(folder), Console())


def _print_promise(found: pandas.DataFrame, console: Console) -> None:
    if found.empty:
        return
    table = Table(title=privacy_words.PROMISE, title_justify="left")
    for name, justify in (("to", "left"), ("messages", "right"), ("ε", "right"), ("δ", "right")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in found.to_dict("records"):
        numbers = f"{row['messages']:,}", privacy_words.epsilon(row["epsilon"]), f"{row['delta']:g}"
        table.add_row(shown(row["to"]), *numbers)
    console.print(table)
    console.print(privacy_words.NOT_COVERED, highlight=False)


def audit_site(
    invitation: Path, data: Path, folder: Path | None, model: str | None, clip_and_noise: ClipAndNoise, nodes: int,
    trials: int,
) -> None:  # fmt: skip
    """Attack what a site has sent, beside its rows, print what that tells, and write a page of it."""
    check_installed()
    from kinfolk.federation.site_run import Care

    noise, participant = _noise(clip_and_noise), _participant(invitation, data, folder, model, Care())
    facts = _audited(participant, participant.recorded(), noise, nodes, trials)
    _write_audit([facts], participant.folder)


def audit_federation(folder: Path, clip_and_noise: ClipAndNoise, nodes: int, trials: int) -> None:
    """The same for all sites of a federation that are on this machine."""
    check_installed()
    from kinfolk.federation.site_run import Care

    noise, invitations = _noise(clip_and_noise), sorted(folder.glob("*.invite"))
    if not invitations:
        raise InputError(
            f"Expected the sites of a federation in {str(folder)!r}, found no NAME.invite: name the folder of kinfolk "
            "federation demo, or use kinfolk site audit at every site."
        )
    participants = [
        _participant(path, path.with_suffix(".csv"), path.with_suffix(""), None, Care()) for path in invitations
    ]
    runs = [each.recorded() for each in participants]  # all are there before the first is attacked
    _write_audit(
        [_audited(each, run, noise, nodes, trials) for each, run in zip(participants, runs, strict=True)], folder
    )


def _audited(participant: Any, run: Any, noise: Any, nodes: int, trials: int) -> AuditFacts:
    """Attack what a site has sent, without noise and with that of the run or another, and print what is told."""
    from kinfolk.federation.audit import audit

    invitation, console = participant.invitation, Console()
    noise = run.noise if noise is None else noise
    about = invitation.agreement.name, invitation.site, len(run.rows.features), trials
    if invitation.agreement.job == "fit":
        if noise is not None:
            raise InputError("Expected no noise where tables are learnt from, got some: leave out --clip and --noise.")
        facts = AuditFacts(
            *about, audit(run, nodes, trials=trials), behind=audit(run.with_masks(), nodes, trials=trials), masks=True,
            held_out_alone=run.held_out_alone,
        )  # fmt: skip
    else:
        behind = None if noise is None else audit(run, nodes, noise=noise, trials=trials)
        promise = None if noise is None else run.promised(noise)
        facts = AuditFacts(*about, audit(run, nodes, trials=trials), noise, behind, promise)
    for tried, found in facts.tables:
        console.print(_audit_table(facts.site, tried, found))
    if facts.few:
        console.print(shown(privacy_words.audit_caution(facts.few)))
    if facts.held_out_alone:
        console.print(shown(privacy_words.audit_held_out(facts.held_out_alone)))
    if facts.promise is not None:
        _print_promise(facts.promise, console)
    return facts


def _audit_table(site: str, tried: str, found: pandas.DataFrame) -> Table:
    title = f"{privacy_words.audit_title([repr(site)])}, {tried}"
    table = Table(title=shown(title), title_justify="left")
    for column in ("node", "rows", "who reads", "and knows"):
        table.add_column(column)
    for column in ("in or out", "at 1 %", "row"):
        table.add_column(column, justify="right", no_wrap=True)
    for node, own in found.groupby("node", sort=False):
        about = [shown(str(node)), shown(f"{own['rows'].iloc[0]:,}")]
        for row in own.to_dict("records"):
            numbers = (f"{row[name]:.2f}" for name in ("auc", "hits", "reconstruction"))
            table.add_row(*about, shown(row["place"]), row["knows"], *numbers)
            about = [shown(""), shown("")]
        table.add_section()
    return table


def _write_audit(facts: list[AuditFacts], folder: Path) -> None:
    console = Console()
    console.print(privacy_words.AUDIT_LEGEND, highlight=False)
    console.print("The page:", shown(write_audit(facts, folder / AUDIT_PAGE), style="bold"))


def predict_rows(folder: Path, table: Path, out: Path | None, trusted: str | None) -> None:
    """Predict the rows of a table with the models of a site."""
    check_installed()
    from kinfolk.federation.site_models import load_models
    from kinfolk.federation.tables.kept import FILE, MODELS, blend_predictions

    if (folder / MODELS / FILE).exists():
        write_table(blend_predictions(folder, read_table(table)), out)
    else:
        write_table(load_models(folder, comma_list(trusted or "")).predict(read_table(table)), out)
