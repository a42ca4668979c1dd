"""Parties from arrays: what tests of members and of weights learn from."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from kinfolk.tables.job import ensemble_weights
from kinfolk.tables.joint import JointMixed, learnt_together
from kinfolk.tables.party import OneParty
from kinfolk.tables.rows import Rows
from kinfolk.tables.splits import Folding

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
from calibration import design_for, party_of


def design_of_rows(y, owner, target, folding):
    """What is known of rows with one feature, and the party that has them."""
    party = party_of(Rows(np.zeros((len(y), 1)), y, owner), target, int(owner.max()) + 1, folding)
    return design_for(party), party


def weights_of(predicted, y, owner, target, folding):
    """The weights of an ensemble whose members have predicted these rows without having learnt from them."""
    design, party = design_of_rows(y, owner, target, folding)
    for name, each in predicted.items():
        party.out_of_fold.predicted[name] = np.asarray(each)[None]
    cv = SimpleNamespace(design=design, parties=OneParty(party))
    (found,) = ensemble_weights(cv, list(predicted), [[SimpleNamespace(name=name, best=0) for name in predicted]])
    return found


def mixed_models(training, values):
    """Random intercepts and slopes, learnt from a training set with every pair of strengths."""
    nodes = training.node_count
    party = party_of(training.rows, training.target, nodes, Folding("rows", []))
    design, parties = design_for(party), OneParty(party)
    zero = np.zeros((1, training.target.outputs, design.width))
    batch = JointMixed(parties, design, values, training.ridge, -1, zero)
    parties.ask(*learnt_together([batch]))
    return [party.batches[batch.name].scores(0, value) for value in range(len(values))]
