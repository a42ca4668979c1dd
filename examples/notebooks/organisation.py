# %% [markdown]
# # Organisations that may not pool data
#
# Four hospitals want better models, and no patient's row may leave its hospital. Before anybody builds a federation,
# two questions can be answered on made-up or released rows: what would have to leave a hospital, and would it help?
#
# **This notebook is a rehearsal.** All sites run in one process on one machine, which holds the rows of everybody. It
# protects nobody's data.

# %%
import itertools

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression

from kinfolk import FedAvg, FedRelax, Graph, GTVMin, InProcess, Logistic, Network, fit, public, what_leaves

rng = np.random.default_rng(0)
names = ["north", "south", "east", "west"]
effects = dict(zip(names, (0.5, 0.6, 0.4, 0.5), strict=True))  # hospitals are alike, not the same


def patients(count, effect):
    X = rng.normal(size=(count, 3))
    return X, (X @ [1.0, -1.0, effect] + rng.logistic(size=count) > 0).astype(float)


rows = {name: patients(15, effect) for name, effect in effects.items()}
test = {name: patients(1000, effect) for name, effect in effects.items()}
network = Network(Graph.from_edges(itertools.combinations(names, 2)), rows, test=test)
network = network.with_public(public.standard_normal(network, 50))
network

# %% [markdown]
# ## What would leave a hospital?
#
# An algorithm declares all that may leave a node; more is refused when it runs.

# %%
for algorithm in (FedRelax(LogisticRegression(), lam=1.0), GTVMin(Logistic(ridge=0.1)), FedAvg(Logistic(ridge=0.1))):
    print(f"{type(algorithm).__name__}:")
    sent = what_leaves(algorithm, network).groupby(["to", "content"], sort=False)["numbers"].sum()
    print(sent.to_string(), "\n")

# %% [markdown]
# `FedRelax` sends predictions on 50 common points that are drawn at random, no parameters. Parameters and predictions
# are not rows, but they are not anonymous either: the parameters of a model that was fitted to one row nearly are
# that row.
#
# ## One site, or four: the same answer

# %%
algorithm = FedRelax(LogisticRegression(), lam=1.0)
one = fit(network, algorithm, rounds=5, progress=False)
four = fit(network, algorithm, rounds=5, engine=InProcess(sites=4), progress=False)
X = test["north"][0]
apart = np.abs(one.predict_proba(X, ["north"] * len(X)) - four.predict_proba(X, ["north"] * len(X))).max()
print(f"one site and four agree to ten digits: {apart < 1e-10}")
print(f"sent by all hospitals in five rounds: {int(four.history['bytes'].iloc[-1]):,} bytes")

# %% [markdown]
# ## Would it help?
#
# Fifteen patients for each hospital, and a thousand others to test with. The error is the share of wrong answers.


# %%
def wrong(run, name):
    X, y = test[name]
    return float((run.predict(X, [name] * len(X)) != y).mean())


alone = fit(network, FedRelax(LogisticRegression(), lam=0.0), rounds=0, progress=False)
for name in names:
    print(f"{name:<6} alone {wrong(alone, name):.3f}   together {wrong(four, name):.3f}")

# %%
place = np.arange(len(names))
plt.figure(figsize=(7, 2.8))
plt.bar(place - 0.2, [wrong(alone, name) for name in names], 0.4, color="#999", label="alone")
plt.bar(place + 0.2, [wrong(four, name) for name in names], 0.4, color="#0a7f7f", label="together")
plt.xticks(place, names)
plt.ylabel("wrong answers")
plt.ylim(0, 0.4)
plt.legend(ncols=2)
plt.tight_layout()

# %% [markdown]
# A hospital can lose by it: look at each bar, not at the mean alone.
#
# ## Hospitals are away, and messages get lost
#
# If a message is lost, or a hospital is away, the edge rests at both ends for that round. So the answer is reached
# later, but it is the same.

# %%
smooth = GTVMin(Logistic(ridge=0.1), lam=1.0)
options = {"rounds": 150, "stop": None, "progress": False}
calm = fit(network, smooth, engine=InProcess(sites=4), **options)
shaky = fit(network, smooth, engine=InProcess(sites=4, lost=0.1), participation=0.75, **options)
print(f"parameters agree to eight digits: {np.allclose(calm.models.w, shaky.models.w, rtol=1e-8, atol=1e-8)}")

# %%
plt.figure(figsize=(7, 2.8))
for name, run in {"everybody, always": calm, "a quarter away, a tenth of the messages lost": shaky}.items():
    plt.semilogy(run.history.index, run.history["residual"], label=name)
plt.xlabel("round")
plt.ylabel("residual")
plt.legend()
plt.tight_layout()

# %% [markdown]
# How to go on: [Organisations that may not pool data](../how-to/organisations.md).
