# %% [markdown]
# # The sorting study in JAX
#
# The task of [the paper's study](sorting_study.md), written for JAX from the images on: lists of five images, each a number of four
# handwritten digits, with their right order and nothing else. `neuralsort.jax` has the names of `neuralsort.torch`, and no PyTorch is imported. A step of
# training, with the lists it draws, is one compiled function; relaxed permutations are pytrees and pass through `jit`, `vmap` and `grad`.
#
# The digits are scikit-learn's, of 8 x 8 pixels.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.example_libraries import optimizers
from sklearn.datasets import load_digits

import neuralsort.jax as ns

QUICK = os.environ.get("NEURALSORT_GALLERY") == "quick"
STEPS, TESTS = (5, 100) if QUICK else (2000, 2000)
N, PLACES, LISTS, KINDS, WIDTH = 5, 4, 100, 16, 128

pixels, labels = load_digits(return_X_y=True)
images = jnp.asarray(pixels / 16)
shuffled = np.random.default_rng(0).permutation(len(labels))
parts = {"train": shuffled[:1400], "test": shuffled[1400:]}
# The images of every digit, as a table with as many columns as the rarest digit has images.
tables = {}
for part, chosen in parts.items():
    by_digit = [chosen[labels[chosen] == digit] for digit in range(10)]
    tables[part] = jnp.asarray(np.stack([one[: min(map(len, by_digit))] for one in by_digit]))


# %% [markdown]
# Lists are drawn from a key: numbers, their digits, and for every digit one of its images.


# %%
def draw(key, table, lists):
    """Images `(lists, n, places, 64)` and the numbers they show."""
    first, second = jax.random.split(key)
    numbers = jax.random.randint(first, (lists, N), 0, 10**PLACES)
    digits = numbers[..., None] // 10 ** jnp.arange(PLACES - 1, -1, -1) % 10
    which = jax.random.randint(second, digits.shape, 0, table.shape[1])
    return images[table[digits, which]], numbers


# %% [markdown]
# A network reads a digit as a mixture of sixteen kinds, and adds up what the kinds are worth in their place. Places differ by orders of magnitude,
# so each has a gain that is learned as a logarithm.


# %%
def initial(key):
    a, b, c = jax.random.split(key, 3)
    return {
        "in": jax.random.normal(a, (64, WIDTH)) * (2 / 64) ** 0.5,
        "kinds": jax.random.normal(b, (WIDTH, KINDS)) * (2 / WIDTH) ** 0.5,
        "worth": jax.random.normal(c, (PLACES, KINDS)),
        "gains": jnp.zeros((PLACES, 1)),
        "bias": jnp.zeros(WIDTH),
    }


def scores(weights, seen):
    hidden = jax.nn.relu(seen @ weights["in"] + weights["bias"])
    kinds = jax.nn.softmax(hidden @ weights["kinds"])  # (lists, n, places, kinds)
    return (kinds * weights["worth"] * jnp.exp(3 * weights["gains"])).sum((-1, -2))


def by_neuralsort(s, order):
    return ns.permutation_cross_entropy(ns.neuralsort(s, tau=0.5), order)


def by_plackett_luce(s, order):
    return ns.plackett_luce_nll(s, order)


# %%
def trained(loss):
    rate = optimizers.polynomial_decay(1e-2, STEPS, 1e-4, power=1.0)
    begin, update, parameters = optimizers.adam(rate)

    @jax.jit
    def step(i, state, key):
        seen, numbers = draw(key, tables["train"], LISTS)
        order = jnp.argsort(-numbers, axis=-1)
        noise = 0.1 * jax.random.normal(key, seen.shape)
        value, gradient = jax.value_and_grad(
            lambda weights: loss(scores(weights, seen + noise), order)
        )(parameters(state))
        return update(i, optimizers.clip_grads(gradient, 5.0), state), value

    state, values = begin(initial(jax.random.key(0))), []
    for i, key in enumerate(jax.random.split(jax.random.key(1), STEPS)):
        state, value = step(i, state, key)
        values.append(value)
    return parameters(state), np.array(values)


seen, numbers = draw(jax.random.key(2), tables["test"], TESTS)
best = -jnp.sort(-numbers, axis=-1)
whole, curves = {}, {}
for name, loss in {"NeuralSort": by_neuralsort, "Plackett-Luce": by_plackett_luce}.items():
    weights, curves[name] = trained(loss)
    order = ns.neuralsort(scores(weights, seen)).permutation()
    right = jnp.take_along_axis(numbers, order, -1) == best
    whole[name] = float(right.all(-1).mean())
    print(f"{name:>14}: {whole[name]:.1%} of lists right, {float(right.mean()):.1%} of places")

# %%
figure, axes = plt.subplots(figsize=(6, 2.6), layout="constrained")
for name, values in curves.items():
    axes.plot(values, label=name, linewidth=0.8)
axes.set(xlabel="step", ylabel="loss", yscale="log")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# Both learn what digits are worth from nothing but orders. Here they are equally good: where the whole order is known, the
# likelihood is a fair alternative, and the relaxed permutation shows its use when something has to pass through the sort.

# %%
ours, plain = whole["NeuralSort"], whole["Plackett-Luce"]
print(f"{ours:.1%} of lists right by NeuralSort in JAX, {plain:.1%} by Plackett-Luce")
