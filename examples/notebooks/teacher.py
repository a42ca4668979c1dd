# %% [markdown]
# # A teacher and students
#
# Four thermometers in a row, each with one measurement. Small enough to check every number by hand.

# %%
import matplotlib.pyplot as plt
import numpy as np

from kinfolk import EuclideanNorm, GTVMin, Network, Squared, SquaredNorm, constant_above, fit, graphs

measured = [0.0, 0.2, 4.0, 4.2]
x = np.ones((1, 1))
network = Network(graphs.chain(4), [(x, [value]) for value in measured])


def temperatures(lam, coupling=EuclideanNorm()):
    return fit(network, GTVMin(Squared(), coupling, lam=lam), progress=False).models.w.ravel()


for lam in (0.0, 0.1, 0.5, 10.0):
    print(f"λ = {lam:<4}", temperatures(lam).round(3))

# %% [markdown]
# With λ = 0.5 the first two share a value *w*, the last two a value *v*. The objective is (w − 0)² + (w − 0.2)² + (v
# − 4)² + (v − 4.2)² + λ (v − w). Its derivative with respect to *w* is 4 w − 0.4 − λ, so w = (0.4 + λ) / 4:

# %%
print(f"by hand: w = {(0.4 + 0.5) / 4:.3f}, v = {(16.4 - 0.5) / 4:.3f}")

# %% [markdown]
# ## Watch groups form
#
# A norm makes neighbours *equal*, or lets them differ in few places. A square makes them *similar*, and nowhere
# equal.

# %%
lams = np.linspace(0.0, 10.0, 41)
figure, panels = plt.subplots(1, 2, sharey=True, figsize=(8, 3.2))
for panel, coupling in zip(panels, (EuclideanNorm(), SquaredNorm()), strict=True):
    panel.plot(lams, [temperatures(lam, coupling) for lam in lams])
    panel.set_title(type(coupling).__name__)
    panel.set_xlabel("λ")
panels[0].set_ylabel("temperature")
figure.tight_layout()

# %%
print(constant_above(network, Squared()))

# %% [markdown]
# **Exercise.** Derive that number from the formulas for *w* and *v* above.
#
# ## Nothing has to be believed
#
# If an answer is the minimum, every other choice has a larger objective. Try a thousand:


# %%
def objective(w, lam=0.5):
    return ((w - measured) ** 2).sum() + lam * np.abs(np.diff(w)).sum()


rng = np.random.default_rng(0)
w = temperatures(0.5)
others = [objective(w + 0.1 * rng.normal(size=4)) for _ in range(1000)]
print(f"the answer: {objective(w):.4f}; the best of 1,000 others: {min(others):.4f}")

# %%
plt.figure(figsize=(7, 2.6))
plt.hist(others, bins=50, color="#999")
plt.axvline(objective(w), color="#d9480f", label="the answer")
plt.xlabel("objective")
plt.legend()
plt.tight_layout()

# %% [markdown]
# ## Does learning together always help?
#
# No. Eight nodes in a row, eight samples each. If all are of one kind, λ helps, the more the larger it is. If
# neighbours are strangers, a large λ does harm.


# %%
def network_of(slopes, seed=0):
    draw = np.random.default_rng(seed)

    def rows(count, slope):
        X = draw.normal(size=(count, 2))
        return X, X @ [slope, 1.0] + draw.normal(size=count)

    train, test = ([rows(count, slope) for slope in slopes] for count in (8, 200))
    return Network(graphs.chain(len(slopes)), train, test=test)


plt.figure(figsize=(7, 3))
strengths = 10.0 ** np.arange(-2, 2.1, 0.25)
for name, slopes in {"kin": [1.0] * 8, "strangers": [5.0, -5.0] * 4}.items():
    eight = network_of(slopes)
    errors = [fit(eight, GTVMin(Squared(), SquaredNorm(), lam=lam), progress=False).error() for lam in strengths]
    plt.loglog(strengths, errors, label=name)
    print(
        f"{name:<9}  λ = 0.01: {errors[0]:.2f}   λ = 100: {errors[-1]:.2f}   best λ: {strengths[np.argmin(errors)]:.2g}"
    )
plt.xlabel("λ")
plt.ylabel("error on new samples")
plt.legend()
plt.tight_layout()

# %% [markdown]
# More, with exercises: [A teacher and students](../how-to/teacher.md).
