# %% [markdown]
# # A researcher
#
# Compare algorithms on a problem whose truth is known, see what the answer is worth, and add an algorithm. Two
# clusters of 20 nodes; every node has 10 samples of 100 features, so alone it cannot know its 100 parameters.

# %%
import matplotlib.pyplot as plt
import numpy as np

from kinfolk import IFCA, GTVMin, Local, Pooled, Squared, constant_above, datasets, fit, found_clusters
from kinfolk.algorithms.ifca import Uniform

problem = datasets.block_regression((20, 20), noise=0.1)
problem.network

# %% [markdown]
# ## Rivals on the same problem
#
# The error is the mean over nodes of the squared distance from the true parameters.

# %%
rivals = {
    "alone": Local(Squared()),
    "one model for all": Pooled(Squared()),
    "GTVMin": GTVMin(Squared(), lam=0.5),
    "IFCA, given K = 2": IFCA(Squared(), model_count=2, initial=Uniform(0.0, 0.5), step_size=0.3),
}
for name, algorithm in rivals.items():
    run = fit(problem.network, algorithm, rounds=400, progress=False)
    print(f"{name:<18} {problem.error(run.models.w):.2g}")

# %% [markdown]
# GTVMin was not told how many clusters there are, nor who belongs to which.
#
# ## Along λ
#
# At λ = 0 every node is alone; above some λ there is one model. In between lies a range in which clusters are found.

# %%
lams = 10.0 ** np.arange(-3, 2.6, 0.25)
runs = [fit(problem.network, GTVMin(Squared(), lam=lam), progress=False) for lam in lams]
errors = [problem.error(run.models.w) for run in runs]
counts = [int(found_clusters(run).max()) + 1 for run in runs]
print(constant_above(problem.network))

# %%
figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(7, 4.4))
top.loglog(lams, errors, color="#0a7f7f")
top.set_ylabel("error")
bottom.loglog(lams, counts, "o-", color="#d9480f", markersize=4)
bottom.set_ylabel("clusters found")
bottom.set_xlabel("λ")
figure.tight_layout()

# %% [markdown]
# ## What is the answer worth?
#
# A certificate bounds how much any other choice of parameters could lower the objective. It is computed from the
# answer, and trusts no algorithm.

# %%
run = fit(problem.network, GTVMin(Squared(), lam=0.5), progress=False)
print(f"no other choice lowers the objective by more than a millionth of it: {run.certificate.relative < 1e-6}")

# %%
history = run.history["residual"]
plt.figure(figsize=(7, 2.8))
plt.semilogy(history.index, history, ".-", color="#0a7f7f")
plt.xlabel("round")
plt.ylabel("residual of the optimality conditions")
plt.tight_layout()

# %% [markdown]
# ## An algorithm of your own
#
# Its functions work on a *site*: some nodes, their data, and the edges that touch them. This is gossip: every node
# moves towards its neighbours, then down its own gradient. `check_algorithm` runs it on one site, on seven and on one
# per node, with nodes away and messages lost, and wants the same answer each time.

# %%
from dataclasses import dataclass
from typing import NamedTuple

from kinfolk.algorithms.parametric import ParametricAlgorithm, gradient_measure, gradient_summary
from kinfolk.engine.protocol import Outbox, PerNode, Sends, Sent
from kinfolk.objective.losses import Loss
from kinfolk.testing import check_algorithm


class State(NamedTuple):
    w: PerNode  # (nodes, parameters)


@dataclass(frozen=True)
class Gossip(ParametricAlgorithm[State]):
    loss: Loss = Squared()
    step_size: float = 0.05

    def sends(self, problem):
        return Sends(neighbours={"w": Sent("parameters", (self.width(problem),))})

    def init(self, site, turn):
        w = site.local_losses(self.loss).start
        return State(w), Outbox({"w": w})

    def step(self, site, state, inbox, turn):
        share = 1 / (1 + np.maximum(site.degrees[site.head], site.degrees[site.tail]))
        w = state.w - site.divergence(share[:, None] * site.difference(state.w, inbox["w"]))
        w = w - self.step_size * site.local_losses(self.loss).gradient(w)
        return State(w), Outbox({"w": w})

    def measure(self, site, state, inbox):
        return gradient_measure(site, self.loss, state.w)

    def summary(self, totals):
        return gradient_summary(totals)


check_algorithm(Gossip())
run = fit(problem.network, Gossip(), rounds=400, stop=None, progress=False)
print(f"gossip: error {problem.error(run.models.w):.2g}")

# %% [markdown]
# How to go on: [A researcher](../how-to/researcher.md), and [which claims of the papers hold](../what-holds.md).
