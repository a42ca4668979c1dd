"""The members of the ensemble: what each learns from some rows, and what it needs to see of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinfolk.tables.design import Design
    from kinfolk.tables.members.graph_member import GraphMember
    from kinfolk.tables.members.member import Member


def members_of(
    design: Design, tailored: GraphMember, degree: float, *, several: bool, named: Sequence[str] = ()
) -> tuple[list[Member], dict[str, str]]:
    """The members besides the pooled model, in the order in which they are tuned, and why others are skipped.

    This list is all that a new member has to be added to.

    Parameters
    ----------
    design : Design
        What is learnt from.
    tailored : GraphMember
        The tailored models.
    degree : float
        The mean degree of their graph.
    several : bool
        Whether rows are at several parties: then members that need all of them do not apply.
    named : sequence of str
        Those that are wanted; by default those of the settings, or all.
    """
    from kinfolk.tables.members.boosted import BoostedTrees
    from kinfolk.tables.members.classes import ClassIntercepts
    from kinfolk.tables.members.graph_member import GraphMember
    from kinfolk.tables.members.intercepts import NodeIntercepts
    from kinfolk.tables.members.recent import recent_members
    from kinfolk.tables.members.slopes import RandomSlopes

    classes = len(design.target.classes) > 2
    built_in: list[Member] = [
        GraphMember(design.family.baselines()[1]),
        ClassIntercepts() if classes else NodeIntercepts(),
        RandomSlopes(),
        tailored,
        _larger_neighbourhood(tailored, design, degree),
        BoostedTrees("trees", residuals=False),
        BoostedTrees("boosted"),
        BoostedTrees("site-boosted", access="sums"),
        *recent_members(),
    ]
    wanted = {*(named or design.settings.named_members([each.name for each in built_in])), "tailored"}
    known = [each for each in built_in if each.name in wanted and _applies(each, design, several)]
    known += design.own_members.values()
    reasons = {each.name: each.unsupported_reason(design) for each in known}
    skipped = {name: why for name, why in reasons.items() if why is not None}
    asked_for = {*named, *design.settings.named_members(())}
    optional = {each.name for each in recent_members()} - asked_for  # where no later times are predicted
    return (
        [each for each in known if each.name not in skipped],
        {name: why for name, why in skipped.items() if name not in optional},
    )


def _applies(member: Member, design: Design, several: bool) -> bool:
    """Whether a member is one of such a job at all."""
    if member.name == "alone":
        return not several and design.kind != "nodes"  # several parties only compare it
    if member.name == "trees" and len(design.target.classes) > 2:  # those on residuals are the same
        return False
    if member.name == "site-boosted" and not several:
        return False
    return member.across_parties if several else design.family.linear or member.name == "tailored"


def _larger_neighbourhood(tailored: GraphMember, design: Design, degree: float) -> GraphMember:
    """The same method on the graph with more neighbours, with λ in units of its degrees."""
    from kinfolk.tables.families import mean_degree
    from kinfolk.tables.members.graph_member import GraphMember

    candidate = tailored.candidate
    if design.wide is None or candidate.parameter != "lam":
        return GraphMember(candidate, "wide", wide=True)
    scale = degree / mean_degree(design.wide)
    return GraphMember(
        dataclasses.replace(candidate, values=tuple(scale * lam for lam in candidate.values)), "wide", wide=True
    )
