"""NeuralSort: the paper's relaxation of sorting to unimodal row-stochastic matrices."""

# The stubs of TensorFlow know neither `x[..., 1:]` nor `~x`.
# pyright: reportArgumentType=false, reportOperatorIssue=false

import tensorflow as tf

from .._blur import Blur, gaussian
from . import _checks
from .gradients import straight_through

Tensor = tf.Tensor

# A gap of this many temperatures carries no weight: exp(-800) is 0 in float64.
WALL = 800.0


def neuralsort(
    scores: Tensor, *, tau: float | Tensor | Blur = 1.0, mask: Tensor | None = None
) -> Tensor:
    r"""Relaxes the permutation that sorts `scores` in descending order.

    $$\widehat P_{i,:} = \operatorname{softmax}\big[\big((n+1-2i)\,s - A_s\mathbf 1\big)/\tau\big],
      \qquad (A_s)_{jk} = |s_j - s_k|$$

    Rows sum to one, and the maximum of row `i` is at item `permutation(scores)[i]`, in every dtype
    and at every length: logits are computed from sorted gaps, in float64, relative to the peak of
    their row. As `tau` tends to 0 this becomes the hard permutation matrix of
    `tf.argsort(scores, direction="DESCENDING")`.

    Args:
        scores: `(..., n)`. Values to sort, a tensor, a NumPy array or nested lists of floats;
            leading dimensions are batch.
        tau: Temperature: a number, a `Blur`, or a tensor that broadcasts against `scores` with a
            last dimension of 1; it may have gradients. In units of the scores: smaller is harder, 0
            is the hard permutation.
        mask: `(..., n)` boolean, True where the item exists. Absent items take no part; the last
            rows place them in index order.

    Returns:
        The matrix `(..., n, n)`, in the dtype of the scores. Row `i` weighs the items for position
        `i`, largest first: `tf.linalg.matvec(P, x)` sorts values x.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If `tau` is negative or a shape does not fit.

    Example:
        >>> scores = tf.constant([1.0, 3.0, 2.0])
        >>> tf.round(100 * tf.linalg.matvec(neuralsort(scores, tau=0.1), scores)).numpy()
        array([300., 200., 100.], dtype=float32)

    Reference: Grover et al. (2019), Eq. 5. Time and memory: O(n^2) per list.
    """
    scores = _checks.scores("neuralsort(scores)", scores)
    tau = _checks.tau(tau, scores)
    mask = _checks.mask(mask, scores)
    if isinstance(tau, Blur):
        tau = _at_gap(scores, mask, gaussian(tau.ranks))
    perm = permutation(scores, mask=mask)
    n = tf.shape(scores)[-1]
    if not tf.is_tensor(tau) and tau == 0:
        return tf.one_hot(perm, n, dtype=scores.dtype)
    tau = tf.cast(tau, tf.float64) if tf.is_tensor(tau) else tf.constant(tau, tf.float64)
    hard = tf.equal(tf.stop_gradient(tau), 0.0)
    tau = tf.where(hard, tf.ones_like(tau), tf.minimum(tau, tau.dtype.max))
    values = _take(tf.cast(scores, tf.float64), perm)
    present = tf.ones_like(perm, tf.bool) if mask is None else _take(mask, perm)
    room = _rooms(values, present, hard)
    spoilt = tf.reduce_any(tf.math.is_nan(values) & present | ~(tau >= 0.0), -1)
    values = tf.where(tf.math.is_inf(values) | ~present, tf.zeros_like(values), values)
    # Compiled exponentials may lose a NaN: none goes in, though its gradient goes through.
    clean = tf.where(spoilt[..., None], tf.zeros_like(values), values)
    working = tf.float64 if scores.dtype == tf.float64 else tf.float32
    outwards = working == tf.float64  # to shorter results a difference of sums is as good
    rank = tf.argsort(perm, axis=-1)
    fall = _fall(straight_through(clean, values), room, tau, rank, outwards=outwards)
    weights = tf.exp(tf.cast(-fall, working))  # the peak of every row is 1
    poison = tf.where(spoilt, tf.constant(float("nan"), working), tf.ones([], working))
    total = tf.reduce_sum(weights, -1, keepdims=True)
    return tf.cast(weights / total * poison[..., None, None], scores.dtype)


def _at_gap(scores: Tensor, mask: Tensor | None, factor: float) -> Tensor:
    """So many times the mean gap in the middle half of each list, `(..., 1)`, without gradient.

    It is 1 for lists of fewer than two finite items, and 0 where the middle half of a list is tied.
    """
    scores = tf.cast(tf.stop_gradient(scores), tf.float64)
    there = tf.math.is_finite(scores) if mask is None else tf.math.is_finite(scores) & mask
    last = tf.reduce_sum(tf.cast(there, tf.int32), -1, keepdims=True) - 1
    known = tf.where(there, scores, tf.constant(float("inf"), tf.float64))
    # One more, so that a list without items has something to point at.
    ordered = tf.sort(tf.concat([known, tf.fill(tf.shape(last), known.dtype.max)], -1), -1)
    low = tf.maximum(last, 0) // 4
    high = tf.maximum(last, 0) - low
    span = _take(ordered, high) - _take(ordered, low)
    tau = factor * span / tf.cast(tf.maximum(high - low, 1), tf.float64)
    tau = tf.where(last < 1, tf.ones_like(tau), tf.minimum(tau, tau.dtype.max))
    unknown = tf.math.is_nan(scores) if mask is None else tf.math.is_nan(scores) & mask
    spoilt = tf.reduce_any(unknown, -1, keepdims=True)
    return tf.where(spoilt, tf.constant(float("nan"), tf.float64), tau)


def permutation(scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The hard permutation `(..., n)` that `neuralsort` relaxes: the stable descending sort.

    It is the paper's row-wise argmax of the matrix, ties going to the smallest unused item. NaN
    counts as larger than every number.

    Args:
        scores: `(..., n)`. Values to sort; leading dimensions are batch.
        mask: `(..., n)` boolean, True where the item exists. Absent items come last, in index
            order.

    Returns:
        `(..., n)` int32. The item at each position.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If the shape of the mask does not fit.

    Example:
        >>> permutation(tf.constant([1.0, 3.0, 2.0])).numpy()
        array([1, 2, 0], dtype=int32)

    Time: O(n log n).
    """
    scores = _checks.scores("permutation(scores)", scores)
    mask = _checks.mask(mask, scores)
    # Every dtype is exact in a longer one, and some have no kernel for sorting of their own.
    exact = tf.cast(scores, tf.float64 if scores.dtype == tf.float64 else tf.float32)
    absent = tf.zeros_like(exact, tf.bool) if mask is None else ~mask
    nan = tf.math.is_nan(exact)
    # Kernels differ in where they put NaN and -0: neither goes in. NaN comes first, as in torch.
    known = tf.where(absent | nan | tf.equal(exact, 0.0), tf.zeros_like(exact), exact)
    perm = tf.argsort(known, axis=-1, direction="DESCENDING", stable=True)
    group = tf.where(absent, 2, tf.where(nan, 0, 1))
    return _take(perm, tf.argsort(_take(group, perm), axis=-1, stable=True))


def _take(x: Tensor, index: Tensor) -> Tensor:
    """Entries of `(..., n)` in the order of an index of the same shape."""
    return tf.gather(x, index, axis=-1, batch_dims=index.shape.rank - 1)


def _rooms(values: Tensor, present: Tensor, hard: Tensor) -> Tensor:
    """Numbers of rooms: absent and infinite items, and all of a hard list, mix with no others."""
    endless = tf.math.is_inf(values)
    wall = (endless[..., 1:] | endless[..., :-1]) & (values[..., 1:] != values[..., :-1])
    wall = wall | tf.broadcast_to(hard, tf.shape(wall)) | ~present[..., 1:]
    wall = tf.concat([tf.zeros_like(endless[..., :1]), wall], -1)
    return tf.cumsum(tf.cast(wall, tf.int32), axis=-1)


def _fall(values: Tensor, room: Tensor, tau: Tensor, rank: Tensor, *, outwards: bool) -> Tensor:
    """How far logits lie below their row's peak: rows in order, columns by item."""
    n = tf.shape(values)[-1]
    index = tf.cast(tf.range(n), values.dtype)
    fixed = tf.stop_gradient(values)
    same = tf.equal(room[..., 1:], room[..., :-1])
    steps = (fixed[..., :-1] - fixed[..., 1:]) / tf.stop_gradient(tau)
    gaps = tf.where(same, tf.minimum(steps, WALL), tf.zeros_like(steps))
    gaps = tf.concat([tf.zeros_like(fixed[..., :1]), gaps], -1)  # before each position

    def table(offset: Tensor, slope: Tensor) -> Tensor:
        """`offset_j - offset_i - 2 i (slope_j - slope_i)`, columns by item."""
        offsets, slopes = (_take(x, rank)[..., None, :] for x in (offset, slope))
        own = (offset - 2 * index * slope)[..., None]
        return offsets - 2 * index[:, None] * slopes - own

    if outwards:
        value = _take(_outwards(gaps), rank)
    else:
        moment, distance = tf.cumsum(gaps * (2 * index - 1), axis=-1), tf.cumsum(gaps, axis=-1)
        value = tf.nn.relu(table(moment, distance))  # rounding puts nothing above the peak
    # The same in the scores, with sign(0) = 0 among ties: linear, so only its gradient counts.
    first, last = _tie_groups(fixed, room)
    slope = values / tf.stop_gradient(tau)
    until = tf.cumsum(slope, axis=-1)
    larger, not_smaller = _take(until - slope, first), _take(until, last)
    offset = larger + not_smaller - tf.cast(first + last, slope.dtype) * slope
    fall = straight_through(value, table(offset, -slope))
    unit = tf.math.log(tau)  # the fall is homogeneous in the temperature
    fall = fall * tf.exp(tf.stop_gradient(unit) - unit)[..., None]
    apart = room[..., :, None] != _take(room, rank)[..., None, :]
    return tf.where(apart, tf.constant(float("inf"), fall.dtype), fall)


def _outwards(gaps: Tensor) -> Tensor:
    """Falls in sorted order, `(..., n, n)`, from the gap before each position.

    Terms of one sign are summed from the peak outwards: nothing cancels, and the peak is 0.
    """
    index = tf.cast(tf.range(tf.shape(gaps)[-1]), gaps.dtype)
    terms = gaps[..., None, :] * (2 * (index - index[:, None]) - 1)
    right = tf.cumsum(tf.nn.relu(terms), axis=-1)
    return right + tf.cumsum(tf.nn.relu(-terms), axis=-1, exclusive=True, reverse=True)


def _tie_groups(values: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """First and last position of the run of equal scores around each position, (..., n)."""
    n = tf.shape(values)[-1]
    apart = (values[..., 1:] != values[..., :-1]) | (room[..., 1:] != room[..., :-1])
    edge = tf.ones_like(room[..., :1], tf.bool)
    run = tf.cumsum(tf.cast(tf.concat([edge, apart], -1), tf.int32), axis=-1)
    # Runs are numbered in order, so where one begins and ends is a search.
    flat = tf.reshape(run, [-1, n])
    first = tf.searchsorted(flat, flat, side="left")
    last = tf.searchsorted(flat, flat, side="right") - 1
    return tf.reshape(first, tf.shape(run)), tf.reshape(last, tf.shape(run))
