"""Rules for plain Python options, the same in every backend: one message each."""

import inspect
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any


def _number(name: str, value: object, expected: str, remedy: str) -> float:
    """A real number of any make, NumPy's too; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"`{name}` expects {expected}, got {type(value).__name__}. {remedy}")
    return float(value)


def _whole(name: str, value: object, expected: str, remedy: str) -> int:
    """A whole number of any make that can index a list; a bool is none."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        pass  # said below, in our words
    raise TypeError(f"`{name}` expects {expected}, got {type(value).__name__}. {remedy}")


def temperature(value: float) -> float:
    """A number for `tau`, not negative."""
    value = _number(
        "tau",
        value,
        "a number or a tensor",
        "Pass a float such as 1.0, or a tensor without dimensions to learn it.",
    )
    if not 0 <= value < math.inf:  # by comparisons, which compilers follow; NaN fails them
        raise ValueError(
            f"`tau` must be a finite number that is not negative, got {value}. "
            "Use tau=0 for the hard permutation, a positive number to relax it."
        )
    return value


def positive_temperature(name: str, value: float) -> float:
    """A temperature that a module starts from or ends at."""
    value = _number(name, value, "a number", "Pass a float such as 1.0.")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(
            f"`{name}` must be a positive number, got {value}. A temperature of 0 has no gradient; "
            "for the hard permutation pass tau=0 instead."
        )
    return value


def annealing(learnable: bool, end: float | None, steps: int | None) -> None:
    """A temperature is learned, or annealed to an end in some steps, or neither."""
    if (end is None) != (steps is None):
        raise ValueError(
            f"`end` and `steps` belong together, got end={end} and steps={steps}. "
            "Say where annealing ends and how many steps it takes."
        )
    if learnable and end is not None:
        raise ValueError(
            f"`learnable=True` and `end={end}` exclude each other. Learn the temperature by "
            "gradient, or anneal it by a schedule."
        )


def annealing_steps(value: int) -> int:
    """How many steps a schedule takes."""
    value = _whole("steps", value, "an int", "Pass a number of steps such as 1000.")
    if value < 1:
        raise ValueError(f"`steps` must be at least 1, got {value}. Count the steps of training.")
    return value


def power(value: float) -> float:
    """The exponent of SoftSort's distance."""
    value = _number("power", value, "the number 1 or 2", "It must be known beforehand.")
    if value not in (1, 2):
        raise ValueError(
            f"`power` must be 1 or 2, got {value}. Power 1 is the absolute difference of scores, "
            "power 2 its square."
        )
    return value


def bandwidth(value: int | None) -> int | None:
    """How many ranks to either side a row may reach."""
    if value is None:
        return None
    value = _whole(
        "bandwidth",
        value,
        "an int or None",
        "Pass a number of ranks, which must be known when the function is traced.",
    )
    if value < 1:
        raise ValueError(
            f"`bandwidth` must be at least 1, got {value}. Pass None to visit every item."
        )
    return value


def k(value: int, n: int) -> int:
    """How many items to take from a list of n."""
    value = _whole("k", value, "an int", "Pass a whole number up to the length of the list.")
    if not 0 <= value <= n:
        raise ValueError(
            f"`k` must be between 0 and the length of the list, {n}, got {value}. "
            "Take fewer items or give longer lists."
        )
    return value


def dim(value: int, shape: tuple[int, ...]) -> int:
    """A dimension of an array of this shape, counted from the front."""
    value = _whole("dim", value, "an int", "Pass one dimension, such as -1.")
    rank = len(shape)
    if not -rank <= value < rank:
        raise ValueError(
            f"`dim` must be between {-rank} and {rank - 1} for an array of shape {shape}, got "
            f"{value}. Name the dimension that holds the list."
        )
    return value % rank


def blur(value: float) -> float:
    """How many neighbouring ranks should blend."""
    value = _number("ranks", value, "a number", "Pass e.g. 1.0.")
    if not 0 < value < math.inf:
        raise ValueError(
            f"`ranks` must be a positive number of ranks, got {value}. For no blur use tau=0."
        )
    return value


def iterations(value: int) -> int:
    """How often rows and columns are normalised in turn."""
    value = _whole("iterations", value, "an int", "Pass a number such as 20.")
    if value < 0:
        raise ValueError(
            f"`iterations` must not be negative, got {value}. Use 0 to normalise the rows alone."
        )
    return value


def tolerance(value: float | None) -> float | None:
    """How far column sums may be from 1."""
    if value is None:
        return None
    value = _number("tolerance", value, "a number or None", "Pass e.g. 1e-4.")
    if not value > 0:
        raise ValueError(
            f"`tolerance` must be positive, got {value}. Use None for a fixed number of iterations."
        )
    return value


def strength(value: float) -> float:
    """How strongly a projection is regularised."""
    value = _number("strength", value, "a number", "Pass a float such as 1.0.")
    if not 0 <= value < math.inf:
        raise ValueError(
            f"`strength` must be a finite number that is not negative, got {value}. "
            "Use strength=0 for the hard sort, a positive number to soften it."
        )
    return value


def choice(name: str, value: str, options: Mapping[str, str]) -> str:
    """One of a few names, each with what it stands for."""
    if not isinstance(value, str) or value not in options:
        names = " or ".join(map(repr, options))
        meanings = ", ".join(f"{key!r} is {what}" for key, what in options.items())
        raise ValueError(f"`{name}` must be {names}, got {value!r}. Choose: {meanings}.")
    return value


def relax(value: Callable[..., object]) -> Callable[..., object]:
    """A relaxation is a function, not its name."""
    if not callable(value):
        raise TypeError(
            f"`relax` expects a function such as neuralsort or softsort, got {value!r}. "
            "Fix its options with functools.partial."
        )
    return value


def refused(
    value: Callable[..., object], given: Mapping[str, object], option: str = "relax"
) -> TypeError | None:
    """What to say of a relaxation that does not take what it is given; None if it does."""
    try:
        taken = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):  # of functions that are not Python's, such as torch.sort
        taken = ()
    if any(one.kind is one.VAR_KEYWORD for one in taken):
        return None
    missing = [name for name in given if name not in {one.name for one in taken}]
    if not missing:
        return None
    name = getattr(value, "__name__", repr(value))
    remedy = {
        "relax": {
            "tau": "Pass one that returns a RelaxedPermutation, such as neuralsort or softsort.",
            "mask": "Lists with a mask need one that takes it, as neuralsort and softsort do.",
        },
        "rank": {
            "tau": "Pass one that returns ranks, such as soft_rank or fast_soft_rank.",
            "mask": "Lists with a mask need one that takes it, as soft_rank and fast_soft_rank do.",
        },
    }
    return TypeError(
        f"`{option}` expects a function that takes `{missing[0]}=`, got {name}, which does not. "
        f"{remedy[option][missing[0]]}"
    )


def called(
    value: Callable[..., Any], x: Any, options: Mapping[str, object], option: str = "relax"
) -> Any:
    """What a function of the user's says of lists, or what it does not take."""
    try:
        return value(x, **options)
    except TypeError:
        mistake = refused(value, options, option)
        if mistake is None:  # it has reasons of its own
            raise
        raise mistake from None


def ranks(value: Callable[..., Any], x: Any, options: Mapping[str, object]) -> Any:
    """Ranks of lists by a function of the user's, one for each item."""
    if not callable(value):
        raise TypeError(
            f"`rank` expects a function such as soft_rank or fast_soft_rank, got {value!r}. "
            "Fix its options with functools.partial."
        )
    made = called(value, x, options, "rank")
    came = getattr(made, "shape", type(made).__name__)
    if came != x.shape:
        raise ValueError(
            f"`rank(x)` must give one rank per item, shape {tuple(x.shape)}, got {came}. "
            "Pass a function of values to ranks, such as soft_rank or fast_soft_rank."
        )
    return made


def memberships(value: Callable[..., Any], scores: Any, options: Mapping[str, object]) -> Any:
    """What a relaxation says of scores, which must have memberships."""
    made = called(relax(value), scores, options)
    if not hasattr(made, "memberships"):
        raise TypeError(
            f"`relax(scores)` must give what has memberships, got {type(made).__name__}. Pass "
            "lapsum, sparse_threshold or midpoint_threshold, or what gives a RelaxedPermutation."
        )
    return made


def sample_shape(value: object) -> tuple[int, ...]:
    """How many samples, as a shape."""
    try:
        shape = tuple(operator.index(size) for size in value)  # pyright: ignore
    except TypeError:
        raise TypeError(
            f"`sample_shape` expects a tuple of whole numbers, got {value!r}. "
            "For three samples write (3,)."
        ) from None
    if any(size < 0 for size in shape):
        raise ValueError(
            f"`sample_shape` must not be negative, got {shape}. For three samples write (3,)."
        )
    return shape


def control(value: float) -> float:
    """How much of a control variate to use: any number."""
    value = _number("strength", value, "a number", "Pass a float such as 1.0.")
    if not math.isfinite(value):
        raise ValueError(
            f"`strength` must be finite, got {value}. Use 0 for the score function alone."
        )
    return value


def relaxed_permutation(name: str, value: object) -> None:
    """The operator that relaxations return, not its matrix, the scores or a distribution."""
    if not hasattr(value, "straight_through"):
        raise TypeError(
            f"`{name}` expects a RelaxedPermutation, got {type(value).__name__}. Relax scores with "
            "neuralsort(scores), or wrap a matrix with RelaxedPermutation.from_dense(matrix)."
        )


def cutoff(value: int | None, n: int) -> int:
    """How many of the first places count; lists may be shorter, None is all of them."""
    if value is None:
        return n
    value = _whole(
        "k", value, "an int or None", "Pass a whole number such as 10, or None for the whole list."
    )
    if value < 1:
        raise ValueError(
            f"`k` must be at least 1, got {value}. Pass None to count every place of the list."
        )
    return min(value, n)


def neighbours(value: int, n: int) -> int:
    """How many of n candidates are neighbours."""
    value = k(value, n)
    if value < 1:
        raise ValueError(f"`k` must be at least 1, got {value}. One neighbour is the fewest.")
    return value


def top_shares(value: int | Mapping[int, float], n: int) -> dict[int, float]:
    """How much each k counts: all of it for one number, else shares that sum to 1."""
    given = value.items() if isinstance(value, Mapping) else [(value, 1.0)]
    shares = {k(size, n): share for size, share in given}
    for size in shares:
        if size < 1:
            raise ValueError(f"`k` must be at least 1, got {size}. Top-1 is the smallest set.")
    if any(share < 0 for share in shares.values()) or not math.isclose(sum(shares.values()), 1.0):
        raise ValueError(
            f"`k` as a mapping needs shares that are not negative and sum to 1, got {value!r}. "
            "Write for example {1: 0.5, 5: 0.5}."
        )
    return shares


def enumerable(n: int, longest: int) -> None:
    """Lists short enough to write all their rankings down."""
    if n > longest:
        raise ValueError(
            f"Enumeration is for lists of at most {longest} items, got {n}, which have {n}! "
            "rankings. Draw some of them with `sample`."
        )


def same_items(n: int, other: int) -> None:
    """Two distributions over rankings of as many items."""
    if n != other:
        raise ValueError(
            f"`kl_divergence` compares distributions over rankings of as many items, got {n} and "
            f"{other}. Give both the same items."
        )


def samples(value: int, least: int = 1) -> int:
    """How many samples to draw."""
    value = _whole("samples", value, "an int", "Pass a whole number.")
    if value < least:
        why = " A leave-one-out baseline needs another sample." if least > 1 else ""
        raise ValueError(f"`samples` must be at least {least}, got {value}.{why} Draw more.")
    return value


def baseline(value: str | None) -> str | None:
    """What to subtract from the costs of a score-function estimator."""
    if value not in ("leave_one_out", None):
        raise ValueError(
            f'`baseline` must be "leave_one_out" or None, got {value!r}. '
            "For a baseline of your own subtract it from the cost and pass None."
        )
    return value


def alpha(value: float) -> float:
    """A share of errors."""
    value = _number("alpha", value, "a number", "Pass e.g. 0.1 for a coverage of 90 %.")
    if not 0 < value < 1:
        raise ValueError(
            f"`alpha` must lie between 0 and 1, got {value}. It is the share of errors: 0.1 covers "
            "90 %."
        )
    return value


def conformal_place(n: int, alpha: float) -> int:
    """Which of n scores, from 1 for the smallest, covers a new one; the largest if none does."""
    # Less than a rounding below what it is: ceil of 9.000000000000002 would be 10.
    return min(max(math.ceil((n + 1) * (1 - alpha) - 1e-9), 1), n)


def some_items(name: str, dim: int, shape: tuple[int, ...]) -> None:
    """Lists that are not empty."""
    if shape[dim] == 0:
        raise ValueError(
            f"`{name}` needs at least one item along dim {dim}, got shape {shape}. "
            "Give lists that are not empty."
        )


def beta(value: float) -> float:
    """How far a policy may leave its reference."""
    value = _number("beta", value, "a number", "Pass e.g. 0.1.")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(
            f"`beta` must be positive and finite, got {value}. Smaller lets the policy go further "
            "from its reference; 0.1 is usual."
        )
    return value


def reduction(value: str) -> str:
    """What to do with one loss per list."""
    if value not in ("mean", "sum", "none"):
        raise ValueError(
            f'`reduction` must be "mean", "sum" or "none", got {value!r}. '
            'Use "none" for one loss per list.'
        )
    return value


def same_subsets(n: int, k: int, other_n: int, other_k: int) -> None:
    """Two distributions over subsets of as many of as many items."""
    if (n, k) != (other_n, other_k):
        raise ValueError(
            f"`kl_divergence` compares distributions over subsets of the same size, got {k} of {n} "
            f"and {other_k} of {other_n} items. Give both the same items and the same k."
        )


def few_subsets(n: int, k: int, most: int) -> None:
    """Few enough subsets to write all of them down."""
    if math.comb(n, k) > most:
        raise ValueError(
            f"Enumeration is for at most {most:,} subsets, and of {n} items there are "
            f"{math.comb(n, k):,} of size {k}. Draw some with `sample`, or ask for `marginals`."
        )


def positive(name: str, value: float) -> float:
    """A scale that something is divided by."""
    value = _number(name, value, "a number", "Pass a float such as 1.0.")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(
            f"`{name}` must be a positive number, got {value}. Smaller is sharper; 0 has no "
            "gradient."
        )
    return value


def cutoffs(value: object, name: str = "k") -> tuple[int, ...]:
    """How many of the first places count: one number or several."""
    several = value if isinstance(value, Iterable) else (value,)
    sizes = tuple(
        _whole(name, one, "an int or a sequence of them", "Pass 10, or (1, 5, 10).")
        for one in several
    )
    for size in sizes:
        if size < 1:
            raise ValueError(f"`{name}` must be at least 1, got {size}. One place is the fewest.")
    if not sizes:
        raise ValueError(f"`{name}` must name at least one cutoff, got none. Pass (1, 5, 10).")
    return sizes
