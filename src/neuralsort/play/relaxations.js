// The relaxations of the library, for short lists in plain JavaScript: small enough to read.
// tests/test_play.py holds their numbers to those of the library.
//
// A number here is a pair: v, its value, and d, its derivative along one direction of the scores.
// Whatever is computed from pairs has its derivative beside it, by the rules of calculus.
"use strict";

const Relaxations = (() => {
  const number = (v, d = 0) => ({ v, d });
  const add = (a, b) => number(a.v + b.v, a.d + b.d);
  const sub = (a, b) => number(a.v - b.v, a.d - b.d);
  const mul = (a, b) => number(a.v * b.v, a.d * b.v + a.v * b.d);
  const div = (a, b) => number(a.v / b.v, (a.d - (a.v / b.v) * b.d) / b.v);
  const times = (a, c) => number(a.v * c, a.d * c);
  const exp = (a) => number(Math.exp(a.v), Math.exp(a.v) * a.d);
  const log = (a) => number(Math.log(a.v), a.d / a.v);
  const abs = (a) => number(Math.abs(a.v), Math.sign(a.v) * a.d);
  const total = (list) => list.reduce(add, number(0));

  // Logarithms of weights that sum to 1, from logits; the largest is taken out before exponentials.
  const logSoftmax = (logits) => {
    const top = logits.reduce((a, b) => (b.v > a.v ? b : a));
    const norm = add(top, log(total(logits.map((x) => exp(sub(x, top))))));
    return logits.map((x) => sub(x, norm));
  };
  const transposed = (rows) => rows[0].map((_, j) => rows.map((row) => row[j]));

  // Items from the largest score to the smallest; among equal ones the earlier comes first.
  const descending = (values) => values.map((_, j) => j).sort((a, b) => values[b] - values[a] || a - b);

  // ((n + 1 - 2i) s_j - sum_k |s_j - s_k|) / tau, with rows i from 1
  const neuralsortLogits = (s, tau) => {
    const spread = s.map((a) => total(s.map((b) => abs(sub(a, b)))));
    return s.map((_, i) =>
      s.map((a, j) => times(sub(times(a, s.length - 1 - 2 * i), spread[j]), 1 / tau)));
  };

  const neuralsort = (s, tau) => neuralsortLogits(s, tau).map((row) => logSoftmax(row).map(exp));

  // -|s_[i] - s_j| / tau. Tied items share what their places would do to them.
  const softsort = (s, tau) => {
    const places = descending(s.map((x) => x.v)).map((item) => {
      const tied = s.filter((x) => x.v === s[item].v);
      return number(s[item].v, total(tied).d / tied.length);
    });
    return places.map((at) => logSoftmax(s.map((x) => times(abs(sub(at, x)), -1 / tau))).map(exp));
  };

  // Columns and rows of NeuralSort made to sum to 1 in turn, rows last.
  const sinkhornSort = (s, tau, iterations = 20) => {
    let rows = neuralsortLogits(s, tau).map(logSoftmax);
    for (let step = 0; step < iterations; step++) {
      rows = transposed(transposed(rows).map(logSoftmax)).map(logSoftmax);
    }
    return rows.map((row) => row.map(exp));
  };

  // Odd-even network: neighbours are compared, and swapped by a share between 0 and 1.
  const sortingNetwork = (s, tau) => {
    const n = s.length;
    const cauchy = (x) => number(Math.atan(x.v) / Math.PI + 0.5, x.d / (Math.PI * (1 + x.v * x.v)));
    const wires = s.map((x, i) => [x, ...s.map((_, j) => number(i === j ? 1 : 0))]);
    for (let layer = 0; layer < n; layer++) {
      for (let a = layer % 2; a < n - 1; a += 2) {
        const [one, two] = [wires[a], wires[a + 1]];
        const share = cauchy(times(sub(one[0], two[0]), 1 / tau));
        wires[a] = one.map((x, k) => add(x, mul(share, sub(two[k], x))));
        wires[a + 1] = two.map((x, k) => add(x, mul(share, sub(one[k], x))));
      }
    }
    return wires.reverse().map((wire) => wire.slice(1));
  };

  // Laplace distributions around the items: row i is their mass between two thresholds.
  const lapsum = (s, tau) => {
    const n = s.length;
    const at = s.map((x) => times(x, -1 / tau));
    const cdf = (z) => (z < 0 ? Math.exp(z) / 2 : 1 - Math.exp(-z) / 2);
    const density = (z) => Math.exp(-Math.abs(z)) / 2;
    const places = at.map((x) => x.v);
    const thresholds = [];
    for (let i = 1; i < n; i++) {
      let low = Math.min(...places) - 60;
      let high = Math.max(...places) + 60;
      for (let step = 0; step < 200; step++) {
        const middle = (low + high) / 2;
        const below = places.reduce((sum, place) => sum + cdf(middle - place), 0) < i;
        [low, high] = below ? [middle, high] : [low, middle];
      }
      const b = (low + high) / 2;
      // It moves as the items around it move, each by the share of its density there.
      const weights = places.map((place) => density(b - place));
      const all = weights.reduce((x, y) => x + y, 0);
      thresholds.push(number(b, at.reduce((sum, x, j) => sum + (weights[j] / all) * x.d, 0)));
    }
    const mass = (from, to) => {
      const value = from.v > 0 ? cdf(-from.v) - cdf(-to.v) : cdf(to.v) - cdf(from.v);
      return number(value, density(to.v) * to.d - density(from.v) * from.d);
    };
    const ends = [number(-Infinity), ...thresholds, number(Infinity)];
    return s.map((_, i) => at.map((x) => mass(sub(ends[i], x), sub(ends[i + 1], x))));
  };

  const METHODS = {
    neuralsort: { name: "NeuralSort", relax: neuralsort },
    softsort: { name: "SoftSort", relax: softsort },
    lapsum: { name: "LapSum", relax: lapsum },
    sinkhorn_sort: { name: "Sinkhorn", relax: sinkhornSort },
    sorting_network: { name: "Sorting network", relax: sortingNetwork },
  };

  // Everything the page shows. `place` counts from 0, from the largest.
  const look = (method, scores, tau, place) => {
    const { relax } = METHODS[method];
    const along = (k) => scores.map((x, j) => number(x, j === k ? 1 : 0));
    const sorted = (s) => relax(s, tau).map((row) => total(row.map((w, j) => mul(w, s[j]))));
    const matrix = relax(along(-1), tau).map((row) => row.map((w) => w.v));
    return {
      matrix,
      sorted: sorted(along(-1)).map((x) => x.v),
      gradient: scores.map((_, k) => sorted(along(k))[place].d),
      entropy: matrix.map((row) => row.reduce((sum, w) => sum - (w > 0 ? w * Math.log(w) : 0), 0)),
      order: descending(scores),
    };
  };

  return { METHODS, look };
})();

if (typeof module !== "undefined") module.exports = Relaxations;
