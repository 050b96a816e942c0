"""Sorting that learns, in four short acts: `python examples/quickstart.py`.

1. Sort, rank and permute a payload, with gradients.
2. Learn a hidden order from lists that were only ever seen sorted.
3. Sort a million items without writing down the matrix that does it.
4. Draw acts 1 and 2 into one figure, `report/quickstart.png`.
"""

import time
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor

import neuralsort.torch as ns

FIGURE = Path(__file__).resolve().parent.parent / "report" / "quickstart.png"
TEMPERATURES = (0.1, 1.0, 10.0)

PLAYERS = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gia"]
SCORES = torch.tensor([6.1, 9.0, 7.2, 3.5, 7.0, 5.2, 8.1])  # Cleo and Eve are nearly tied
AGES = torch.tensor([23.0, 41.0, 35.0, 19.0, 28.0, 52.0, 30.0])
PLACES = ["1st", "2nd", "3rd", "4th", "5th", "6th", "7th"]

WORD = "FLOWCHARTING"  # twelve letters, all different


# Act 1 ----------------------------------------------------------------------------------------


def sort_rank_permute() -> None:
    """Prints the everyday operators beside their hard counterparts."""
    print_heading("1. Sort, rank and permute, with gradients")
    print_row("player", PLAYERS)
    print_row("score", numbers(SCORES))
    print_row("age", numbers(AGES, ".0f"))

    print("\n  The scores in order: the hard sort, then softer and softer ones.")
    print_row("", PLACES)
    print_row("torch.sort", numbers(SCORES.sort(descending=True).values))
    for tau in TEMPERATURES:
        soft = ns.soft_sort(SCORES, tau=tau, descending=True)
        print_row(f"soft_sort, tau={tau:g}", numbers(soft))

    print("\n  The rank of each player, 1 for the best. Softly, near-ties share their ranks.")
    print_row("", PLAYERS)
    print_row("hard rank", numbers(SCORES.argsort(descending=True).argsort() + 1, "d"))
    for tau in TEMPERATURES:
        ranks = ns.soft_rank(SCORES, tau=tau, descending=True)
        print_row(f"soft_rank, tau={tau:g}", numbers(ranks))

    print("\n  The ages in the order of the scores: a differentiable ages[argsort(scores)].")
    scores = SCORES.clone().requires_grad_()
    ages = ns.soft_sort_by(AGES, scores, tau=1.0, descending=True)
    print_row("", PLACES)
    print_row("hard", numbers(AGES[SCORES.argsort(descending=True)], ".0f"))
    print_row("soft_sort_by, tau=1", numbers(ages.detach(), ".1f"))

    print("\n  How the age in third place would change if a player scored a little more.")
    (gradient,) = torch.autograd.grad(ages[2], scores)
    print_row("", PLAYERS)
    print_row("d age[third] / d score", numbers(gradient, "+.2f"))


# Act 2 ----------------------------------------------------------------------------------------


def learn_hidden_order(steps: int = 200) -> tuple[list[float], list[float]]:
    """Finds the rule behind an order by gradient descent through the sort.

    An item has six features and a payload. A hidden linear rule scores the features, and somebody
    sorts every list by it. The learner sees the items shuffled and the payloads sorted; it is
    never told a score, a rank, or which item went where.

    Returns:
        The loss, and the share of unseen lists put in exactly the right order, at every step.
    """
    print_heading("2. Learn a hidden order from sorted examples")
    generator = torch.Generator().manual_seed(0)
    hidden_rule = torch.randn(6, generator=generator)
    features = torch.randn(256, len(WORD), 6, generator=generator)
    payload = torch.randn(256, len(WORD), 8, generator=generator)
    order = hard_order(features, hidden_rule)
    observed = payload.take_along_dim(order.unsqueeze(-1), dim=1)  # (256, 12, 8)

    unseen = torch.randn(500, len(WORD), 6, generator=generator)
    unseen_order = hard_order(unseen, hidden_rule)
    # In its hidden order, the first unseen list spells a word.
    letters = dict(zip(unseen_order[0].tolist(), WORD, strict=True))

    rule = (0.1 * torch.randn(6, generator=generator)).requires_grad_()
    optimiser = torch.optim.Adam([rule], lr=0.05)
    losses, shares = [], []
    print(f"  {'step':>5}{'loss':>9}{'unseen lists right':>22}{'one unseen list':>20}")
    for step in range(steps + 1):
        soft = ns.soft_sort_by(payload, features @ rule, tau=0.3, descending=True)
        loss = (soft - observed).square().mean()

        guess = hard_order(unseen, rule.detach())
        losses.append(loss.item())
        shares.append((guess == unseen_order).all(-1).double().mean().item())
        if step in (0, 2, 5, 10, 20, 50, 100, steps):
            word = "".join(letters[item] for item in guess[0].tolist())
            print(f"  {step:>5}{losses[-1]:>9.3f}{shares[-1]:>22.1%}{word:>20}")

        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    cosine = torch.cosine_similarity(rule.detach(), hidden_rule, dim=0).item()
    print(f"  The learnt rule points where the hidden rule points: cosine {cosine:.5f}.")
    return losses, shares


def hard_order(features: Tensor, rule: Tensor) -> Tensor:
    """Item indices by descending `features @ rule`: `(lists, n, d), (d,) -> (lists, n)`."""
    return (features @ rule).argsort(dim=-1, descending=True)


# Act 3 ----------------------------------------------------------------------------------------


def sort_a_million(n: int = 1_000_000) -> None:
    """Sorts a list so long that its permutation matrix would not fit anywhere."""
    print_heading("3. Sort a million items")
    scores = torch.randn(n, generator=torch.Generator().manual_seed(0)).requires_grad_()
    start = time.perf_counter()
    soft = ns.neuralsort(scores, tau=0.01).sort(scores)
    middle = time.perf_counter()
    soft.square().sum().backward()
    end = time.perf_counter()

    distance = (soft - scores.sort(descending=True).values).abs().max().item()
    print(f"  forward {middle - start:.2f} s, backward {end - middle:.2f} s")
    print(f"  largest distance from the hard sort: {distance:.4f}")
    print(f"  the matrix, never written down, would take {4 * n * n / 1e12:.0f} TB")


# Act 4 ----------------------------------------------------------------------------------------


def draw(losses: list[float], shares: list[float]) -> None:
    """Writes one figure: scores, gradient and learning above, the matrix at three tau below."""
    plt.rcParams.update({"font.size": 10, "axes.titlesize": 11, "axes.titlelocation": "left"})
    figure = plt.figure(figsize=(13, 8.4), layout="constrained")
    figure.suptitle("Soft sorting: an order you can differentiate", fontsize=17, x=0.01, ha="left")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
    top, bottom = figure.subfigures(2, 1, height_ratios=[1, 1.25])

    scores_axes, gradient_axes, learning_axes = top.subplots(1, 3)
    draw_scores(scores_axes)
    draw_gradients(gradient_axes)
    draw_learning(learning_axes, losses, shares)

    bottom.suptitle(
        "The same seven scores sorted at three temperatures. "
        "Each row is one place and says who is in it; its weights add up to 1.",
        fontsize=11,
        x=0.01,
        ha="left",
    )
    matrix_axes = bottom.subplots(1, 3)
    captions = ("almost a hard sort", "near-ties share places", "all players blend")
    for axes, tau, caption in zip(matrix_axes, TEMPERATURES, captions, strict=True):
        draw_matrix(axes, tau, caption)
    bottom.colorbar(
        matrix_axes[-1].images[0], ax=matrix_axes, label="weight", shrink=0.9, pad=0.01, aspect=30
    )

    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=150)
    plt.close(figure)


def draw_scores(axes: Axes) -> None:
    """Draws the input: one score per player."""
    bars = axes.bar(PLAYERS, SCORES.tolist(), color=plt.get_cmap("cividis")(0.25), width=0.7)
    axes.bar_label(bars, fmt="%.1f", padding=2)
    axes.set(title="The scores: Cleo and Eve are nearly tied", ylim=(0, 10.5), ylabel="score")
    axes.spines[["top", "right"]].set_visible(False)


def draw_gradients(axes: Axes) -> None:
    """Draws how the value in third place answers to each score, at every temperature."""
    for index, tau in enumerate(TEMPERATURES):
        scores = SCORES.clone().requires_grad_()
        third = ns.neuralsort(scores, tau=tau).sort(scores)[2]
        (gradient,) = torch.autograd.grad(third, scores)
        axes.bar(
            [position + 0.27 * (index - 1) for position in range(len(PLAYERS))],
            gradient.tolist(),
            width=0.25,
            color=plt.get_cmap("cividis")((0.1, 0.5, 0.9)[index]),
            label=f"tau = {tau:g}",
        )
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(PLAYERS)), PLAYERS)
    axes.set(title="The gradient: who moves the value in 3rd place?", ylabel="d value / d score")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def draw_learning(axes: Axes, losses: list[float], shares: list[float]) -> None:
    """Draws act 2: the loss falls while unseen lists come out right."""
    dark, light = plt.get_cmap("cividis")(0.1), plt.get_cmap("cividis")(0.75)
    axes.plot(losses, color=light, linewidth=2.2, linestyle="--", label="loss (training lists)")
    axes.plot(shares, color=dark, linewidth=2.2, label="share of unseen lists exactly right")
    axes.set(title="Learning a hidden order from sorted examples", xlabel="step", ylim=(0, None))
    axes.legend(frameon=False, loc="center right")
    axes.spines[["top", "right"]].set_visible(False)


def draw_matrix(axes: Axes, tau: float, caption: str) -> None:
    """Draws one relaxed permutation, row = place, column = player."""
    matrix = ns.neuralsort(SCORES, tau=tau).to_dense()
    axes.imshow(matrix.numpy(), cmap="viridis", vmin=0, vmax=1)
    for place, weights in enumerate(matrix.tolist()):
        for player, weight in enumerate(weights):
            if weight >= 0.005:
                colour = "black" if weight > 0.6 else "white"
                text = f"{weight:.2f}".lstrip("0")
                axes.text(player, place, text, ha="center", va="center", color=colour, fontsize=8.5)
    axes.set_xticks(range(len(PLAYERS)), PLAYERS)
    axes.set_yticks(range(len(PLACES)), PLACES)
    axes.tick_params(length=0)
    axes.set_title(f"tau = {tau:g}: {caption}")


# Printing -------------------------------------------------------------------------------------


def print_heading(text: str) -> None:
    """Prints a line of text, underlined."""
    print(f"\n{text}\n{'-' * len(text)}")


def print_row(label: str, cells: list[str]) -> None:
    """Prints a label and right-aligned cells."""
    print(f"  {label:<24}" + "".join(f"{cell:>8}" for cell in cells))


def numbers(x: Tensor, form: str = ".2f") -> list[str]:
    """Formats every element of a 1-d tensor."""
    return [format(value, form) for value in x.tolist()]


def main() -> None:
    """Plays the four acts."""
    matplotlib.use("Agg")  # draw into a file, also where there is no screen
    sort_rank_permute()
    losses, shares = learn_hidden_order()
    sort_a_million()
    draw(losses, shares)
    print(f"\nThe figure is in {FIGURE}")


if __name__ == "__main__":
    main()
