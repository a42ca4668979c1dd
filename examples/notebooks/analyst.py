# %% [markdown]
# # An analyst with a table
#
# Every county of the US is a node with one row: turnout at the election of 1980, and what might explain it. The
# question: should each county have a model of its own, learnt together with its neighbours? The data are bundled with
# kinfolk.

# %%
import matplotlib.pyplot as plt
import numpy as np

import kinfolk

counties = kinfolk.datasets.named_table("counties").frame
south = counties[(counties["lat"] < 36.5) & (counties["lon"] > -92)].reset_index(drop=True)
south.head(3).round(2)

# %% [markdown]
# ## Fit
#
# `learn` holds out a fifth of the rows, chooses everything inside the others, and compares on the same held-out rows.
# `lat` and `lon` are places, so the nearest counties are neighbours.

# %%
run = kinfolk.learn(south, node="county", target="log_turnout", folds=3, progress=False)
print(run.leaderboard[["part", "error", "weight"]].round(3))

# %% [markdown]
# *Final* is what predicts: a blend of the members, with weights from cross-validation. *Control* is the same blend
# with neighbours and places drawn at random. If it were as good as the blend, neighbours would not matter.

# %%
print(run.judgement.text)
print()
print(*run.notes, sep="\n")

# %%
shown = ["pooled", "control", "boosting", "tailored", "final"]
names = ["one model for all", "control: random neighbours", "rival: boosting", "tailored models", "the blend"]
plt.figure(figsize=(7, 2.6))
plt.barh(names, run.leaderboard["error"][shown], color=["#999"] * 3 + ["#0a7f7f"] * 2)
plt.xlabel("error of log turnout on held-out counties (root mean square)")
plt.tight_layout()

# %% [markdown]
# ## Look
#
# The tailored models differ from place to place. What does a higher income go with? Where the map is blue, with a
# lower turnout, schooling and home ownership being equal.

# %%
w = run.runs["tailored"].models.w
places = south.groupby("county")[["lon", "lat"]].mean().loc[[str(name) for name in run.graph.names]]
income = w[:, run.features.index("log_income")]
plt.figure(figsize=(7, 4.4))
most = np.abs(income).max()
plt.scatter(places["lon"], places["lat"], c=income, cmap="RdBu_r", vmin=-most, vmax=most, s=22)
plt.colorbar(label="effect of log income (in standard deviations)")
plt.xlabel("longitude")
plt.ylabel("latitude")
plt.tight_layout()

# %% [markdown]
# ## Predict, with intervals
#
# An interval of level 0.8 should hold the truth of four counties in five. Do those of the counties that were held
# out? With 120 of them, anything from 73 to 87 % may be chance.

# %%
held_out = south.iloc[run.predictions["row"]]
predicted = run.predict(held_out, interval=0.8)
inside = held_out["log_turnout"].between(predicted["low"], predicted["high"])
print(f"{inside.sum()} of {len(inside)} held-out counties lie inside their interval: {inside.mean():.0%}")

# %%
order = np.argsort(predicted["log_turnout"].to_numpy())[::3]
some, truth = predicted.iloc[order], held_out["log_turnout"].iloc[order]
plt.figure(figsize=(7, 3.2))
plt.fill_between(range(len(some)), some["low"], some["high"], color="#0a7f7f", alpha=0.25, label="interval, level 0.8")
plt.plot(range(len(some)), some["log_turnout"], color="#0a7f7f", label="prediction")
plt.plot(range(len(some)), truth, "k.", label="truth")
plt.xlabel("every third held-out county, by prediction")
plt.ylabel("log turnout")
plt.legend()
plt.tight_layout()

# %% [markdown]
# `run.save("folder")` keeps all of it, with a page to look at; `run.plot.network()` and others are figures to zoom
# into. How to go on: [An analyst with a table](../how-to/analyst.md).
