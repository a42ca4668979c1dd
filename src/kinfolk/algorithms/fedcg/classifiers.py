"""Domains by a teacher and a student, section 3.1 of the paper: two classifiers that map a row to a domain.

    d̂(x) = argmax_d g_teacher(x)                                         labels of rows in training
    φ_k  = argmin over local steps of the cross-entropy of g_student and d̂                                          (3)
    φ    = Σ_k n_k φ_k / Σ_k n_k,    every T rounds the teacher becomes the student

Both start at random. On digits this collapses: a random teacher puts nearly all rows into one domain, and the rounds
keep the partition that they start with. The run's notes report it when it happens. ``ClassMeans`` does not collapse.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.fedcg.discovery import DiscoveryByLook, Found
from kinfolk.checks import AtLeast, InputError, Positive
from kinfolk.engine.protocol import WHOLE_NUMBER, Arrays, Inbox, Sent, Turn
from kinfolk.modules import layer
from kinfolk.network.data import Data
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.objective.torch_loss import TorchLoss
from kinfolk.typing import Floats, Ints

FILTERS = (32, 64)  # of the two convolutions of the paper's classifier
TEACHER_SEED, STUDENT_SEED = 11, 12


@dataclass(frozen=True)
class TeacherStudent(DiscoveryByLook):
    """Domains of rows by two classifiers, eq (3).

    With ``image`` = (channels, height, width) that of the paper: two 3 × 3 convolutions with 32 and 64 filters, ReLU,
    average pooling, a linear layer.

    Parameters
    ----------
    pool : int
        The pooling leaves a grid of so many cells a side. The paper's 1 cannot distinguish rotations; 4 can.
    module : torch.nn.Module, optional
        Another classifier, from rows to an output for every domain.
    every : int
        T, rounds until the teacher becomes the student.
    step_size : float
        Of the steps of the student.
    batch : int, optional
        Rows in a step; None for all of a client.
    same_start : bool
        Whether the student starts as a copy of the teacher.
    """

    pool: Annotated[int, AtLeast(1)] = 1
    module: Any = None
    every: Annotated[int, AtLeast(1)] = 10
    step_size: Annotated[float, Positive()] = 1e-4
    batch: Annotated[int, AtLeast(1)] | None = 20
    same_start: bool = False

    def check(self, problem: Problem, domains: int | None) -> None:
        """A classifier that can read rows."""
        if self.module is None and self.image is None:
            raise InputError("Expected image=(channels, height, width) or a module for TeacherStudent, got neither.")
        if self.module is None:
            super().check(problem, domains)

    def check_data(self, site: Site, domains: int | None) -> None:
        """An output for every domain."""
        if len(site.data.y):
            labels = np.arange(len(site.data.y)) % (domains or 1)
            self._loss(domains or 1).check_data(Data(site.data.X, labels.astype(np.float64), site.data.starts))

    @cached_property
    def _losses(self) -> dict[int, TorchLoss]:
        return {}

    def _loss(self, domains: int) -> TorchLoss:
        if domains not in self._losses:
            module = self._classifier(domains) if self.module is None else self.module
            self._losses[domains] = TorchLoss(
                module, "cross-entropy", step_size=self.step_size, reduction="sum", precision="float32"
            )
        return self._losses[domains]

    def _classifier(self, domains: int) -> Any:
        flat = layer("flat", "TeacherStudent")
        nn = flat.torch.nn
        assert self.image is not None
        with flat.drawing_from(TEACHER_SEED):
            return nn.Sequential(
                nn.Unflatten(1, self.image), nn.Conv2d(self.image[0], FILTERS[0], 3), nn.ReLU(),
                nn.Conv2d(*FILTERS, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(self.pool), nn.Flatten(),
                nn.Linear(FILTERS[1] * self.pool**2, domains),
            )  # fmt: skip

    def sends(self, problem: Problem, most: int, width: int) -> dict[str, Sent]:
        """The student after local steps."""
        return {
            "student": Sent("parameters of a domain classifier", (self._loss(most).width(problem.feature_count),)),
            "rows": Sent("number of rows"),
        }

    def replies(self, problem: Problem, most: int) -> dict[str, Sent]:
        """Teacher, student and their age."""
        classifier = Sent("parameters of a domain classifier", (self._loss(most).width(problem.feature_count),))
        known = {"teacher": classifier, "student": classifier, "age": WHOLE_NUMBER}
        return {**super().replies(problem, most), **known}

    def work(self, site: Site, X: Floats, inbox: Inbox, turn: Turn) -> Arrays:
        """(3), on the rows of those present."""
        found = dict(inbox.to_all)
        nobody = np.empty(0, dtype=np.int64)
        labels = self.labels(X, site.data.owner, nobody, found).astype(np.float64)
        loss = self._loss(int(found["count"]))
        losses = loss.bind(Data(X, labels, site.data.starts))
        start = np.tile(found["student"], (site.node_count, 1))
        trained = FedAvg(loss, local_epochs=1, batch=self.batch).worked(site, turn, start, losses=losses)
        return {"student": trained, "rows": site.data.sizes.astype(np.float64)}

    def start(self, problem: Problem, domains: int | None, turn: Turn) -> Found:
        """Two classifiers, drawn at random."""
        assert domains is not None
        flat = self._loss(domains).flat(problem.feature_count)
        teacher = flat.redrawn(TEACHER_SEED + 1000 * turn.seed)
        student = teacher if self.same_start else flat.redrawn(STUDENT_SEED + 1000 * turn.seed)
        return {"count": np.asarray(domains), "teacher": teacher, "student": student, "age": np.asarray(0)}

    def combine(
        self, found: Found, outbox: Arrays, domains: int | None, most: int, turn: Turn
    ) -> tuple[Found, int | None, Arrays]:
        """FedAvg of the student; every T rounds it becomes the teacher."""
        if "student" not in outbox or not outbox["rows"].sum() > 0:
            return found, domains, {}
        share = outbox["rows"] / outbox["rows"].sum()
        student, age = np.einsum("k,kp->p", share, outbox["student"]), int(found["age"]) + 1
        teacher = student if age % self.every == 0 else found["teacher"]
        return {**found, "teacher": teacher, "student": student, "age": np.asarray(age)}, domains, {}

    def labels(self, X: Floats, owner: Ints, domain: Ints, found: Found) -> Ints:
        """The domain that the teacher predicts for every row."""
        return np.asarray(self._outputs(X, found, "teacher").argmax(axis=1))

    def scores(self, X: Floats, found: Found) -> Floats:
        """The probabilities of the student."""
        return self._loss(int(found["count"])).row_loss.probabilities(self._outputs(X, found, "student"))

    def _outputs(self, X: Floats, found: Found, who: str) -> Floats:
        models = self._loss(int(found["count"])).models(found[who][None])
        return models.outputs(X, np.zeros(len(X), dtype=np.int64))
