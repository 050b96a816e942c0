"""Learning to rank from rankings: recovers the strengths of items from the orders people gave.

Simulates rankings from known strengths, once in full and once only their first places, fits
Plackett-Luce to both by maximum likelihood, and, where the package `choix` is installed, compares
with its solver on the same data.

    python examples/fit_rankings.py --rankings 5000 --items 20 --top 5
"""

import argparse
import importlib.util

import torch
from torch import Tensor

import neuralsort.torch as ns


def fit(rankings: Tensor, items: int) -> Tensor:
    """Maximum-likelihood strengths, centred, from full rankings or from their first places.

    Args:
        rankings: `(rankings, k)`. The items from the first place down.
        items: How many items there are.

    Returns:
        `(items,)` in float64, with mean 0: adding a constant to all of them changes nothing.
    """
    logits = torch.zeros(items, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [logits], max_iter=200, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = ns.plackett_luce_nll(logits, rankings)
        loss.backward()
        return loss

    optimiser.step(closure)  # pyright: ignore
    return (logits - logits.mean()).detach()


def fit_by_choix(rankings: Tensor, items: int) -> Tensor:
    """The same by the package `choix`: a ranking is a series of choices among what is left."""
    import choix

    if rankings.shape[1] == items:
        strengths = choix.ilsr_rankings(items, rankings.tolist())
    else:
        choices = []
        for ranking in rankings.tolist():
            left = set(range(items))
            for item in ranking:
                left.remove(item)
                choices.append((item, list(left)))
        strengths = choix.ilsr_top1(items, choices)
    fitted = torch.as_tensor(strengths)
    return fitted - fitted.mean()


def simulate(rankings: int, items: int, seed: int) -> tuple[Tensor, Tensor]:
    """Strengths with mean 0, and full rankings drawn from them."""
    generator = torch.Generator().manual_seed(seed)
    strengths = torch.randn(items, dtype=torch.float64, generator=generator)
    strengths -= strengths.mean()
    return strengths, ns.PlackettLuce(strengths).sample((rankings,), generator=generator)


def main() -> None:
    """Simulates, fits, and prints what was found."""
    parser = argparse.ArgumentParser(description="Recover strengths from rankings.")
    parser.add_argument("--rankings", type=int, default=5000)
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--top", type=int, default=5, help="places seen of the partial rankings")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    strengths, rankings = simulate(options.rankings, options.items, options.seed)
    seen = {"all places": rankings, f"first {options.top} places": rankings[:, : options.top]}
    fitted = {name: fit(data, options.items) for name, data in seen.items()}

    print(f"{options.rankings:,} rankings of {options.items} items\n")
    print(f"{'item':>6}{'true strength':>16}" + "".join(f"{name:>18}" for name in fitted))
    for item in strengths.argsort(descending=True).tolist():
        cells = "".join(f"{values[item]:>18.3f}" for values in fitted.values())
        print(f"{item:>6}{strengths[item]:>16.3f}{cells}")
    errors = [(values - strengths).abs().max() for values in fitted.values()]
    print(f"{'largest error':<22}" + "".join(f"{error:>18.3f}" for error in errors))

    if importlib.util.find_spec("choix") is None:
        print("\nInstall `choix` to compare with its solver.")
        return
    gaps = [(fitted[k] - fit_by_choix(seen[k], options.items)).abs().max() for k in seen]
    print(f"{'distance from choix':<22}" + "".join(f"{gap:>18.1e}" for gap in gaps))


if __name__ == "__main__":
    main()
