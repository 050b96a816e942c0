// What is on the page: the state, how it is drawn, and what people do to it.
"use strict";

const LOWEST = 0;
const HIGHEST = 5;
const state = { method: "neuralsort", tau: 0.5, scores: [2, 5, 3, 3.2, 1.2, 4], place: 1 };
const $ = (id) => document.getElementById(id);
const letter = (j) => String.fromCharCode(65 + j);
const round = (x, digits = 2) => (Math.abs(x) < 0.5 * 10 ** -digits ? 0 : x).toFixed(digits);
const clamp = (x) => Math.min(HIGHEST, Math.max(LOWEST, Math.round(x * 100) / 100));

function element(tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// -- drawing -------------------------------------------------------------------------------------

function makeScores() {
  $("scores").replaceChildren(...state.scores.map((_, j) => {
    const bar = element("div", "", {
      class: "score", role: "slider", tabindex: "0", "aria-label": `Score of item ${letter(j)}`,
      "aria-orientation": "vertical", "aria-valuemin": LOWEST, "aria-valuemax": HIGHEST,
    });
    bar.append(element("i"), element("b"));
    const drag = (event) => {
      const box = bar.getBoundingClientRect();
      move(j, LOWEST + (HIGHEST - LOWEST) * (box.bottom - event.clientY) / box.height);
    };
    bar.addEventListener("pointerdown", (event) => {
      bar.setPointerCapture(event.pointerId);
      bar.focus();
      drag(event);
    });
    bar.addEventListener("pointermove", (event) => {
      if (bar.hasPointerCapture(event.pointerId)) drag(event);
    });
    bar.addEventListener("keydown", (event) => {
      const step = { ArrowUp: 0.1, ArrowRight: 0.1, ArrowDown: -0.1, ArrowLeft: -0.1,
        PageUp: 1, PageDown: -1, Home: -HIGHEST, End: HIGHEST }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      move(j, state.scores[j] + step);
    });
    return bar;
  }));
}

function makeMatrix() {
  const head = element("tr");
  head.append(element("th", "place"), ...state.scores.map((_, j) => element("th", letter(j))),
    element("th", "value"), element("th", "items"));
  $("matrix").tHead.replaceChildren(head);
  $("matrix").tBodies[0].replaceChildren(...state.scores.map((_, i) => {
    const row = element("tr", "", { tabindex: "0" });
    row.append(element("th", `${i + 1}`), ...state.scores.map(() => element("td")),
      element("td"), element("td"));
    const choose = () => { state.place = i; draw(); };
    row.addEventListener("click", choose);
    row.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      choose();
    });
    return row;
  }));
}

function draw() {
  const seen = Relaxations.look(state.method, state.scores, state.tau, state.place);
  $("tau-value").textContent = state.tau.toPrecision(2);

  [...$("scores").children].forEach((bar, j) => {
    const share = (state.scores[j] - LOWEST) / (HIGHEST - LOWEST);
    bar.setAttribute("aria-valuenow", state.scores[j]);
    bar.firstChild.style.height = `${100 * share}%`;
    bar.lastChild.textContent = `${letter(j)} ${round(state.scores[j])}`;
  });

  [...$("matrix").tBodies[0].rows].forEach((row, i) => {
    row.setAttribute("aria-selected", i === state.place);
    seen.matrix[i].forEach((weight, j) => {
      const cell = row.cells[j + 1];
      cell.textContent = round(weight);
      cell.style.background = `color-mix(in srgb, var(--accent) ${Math.round(70 * weight)}%, transparent)`;
    });
    row.cells[state.scores.length + 1].textContent = round(seen.sorted[i]);
    row.cells[state.scores.length + 2].textContent = round(Math.exp(seen.entropy[i]), 1);
  });

  const largest = Math.max(1e-9, ...seen.gradient.map(Math.abs));
  $("gradient-title").textContent = `Gradient of place ${state.place + 1}`;
  $("gradient").replaceChildren(...seen.gradient.map((slope, j) => {
    const bar = element("div", "", { class: "slope" });
    const height = 50 * Math.abs(slope) / largest;
    const mark = element("i", "", { class: slope < 0 ? "down" : "up" });
    mark.style.height = `${height}%`;
    mark.style.top = slope < 0 ? "50%" : `${50 - height}%`;
    bar.append(mark, element("b", `${letter(j)} ${round(slope)}`));
    return bar;
  }));

  const row = seen.matrix[state.place];
  const parts = row.map((weight, j) => [weight, j]).filter(([weight]) => weight >= 0.01)
    .sort((a, b) => b[0] - a[0]).map(([weight, j]) => `${Math.round(100 * weight)} % ${letter(j)}`);
  $("blend").textContent =
    `Place ${state.place + 1} belongs to ${letter(seen.order[state.place])}. Here it is ${round(seen.sorted[state.place])}: ` +
    `${parts.join(", ")}. Entropy ${round(seen.entropy[state.place])} nats, ` +
    `as if ${round(Math.exp(seen.entropy[state.place]), 1)} items shared it.`;
}

// -- what people do --------------------------------------------------------------------------------

function move(j, score) {
  state.scores[j] = clamp(score);
  draw();
}

function rebuild() {
  state.place = Math.min(state.place, state.scores.length - 1);
  makeScores();
  makeMatrix();
  draw();
}

for (const [name, method] of Object.entries(Relaxations.METHODS)) {
  $("method").append(element("option", method.name, { value: name }));
}
$("method").addEventListener("change", (event) => { state.method = event.target.value; draw(); });
$("tau").addEventListener("input", (event) => { state.tau = 10 ** Number(event.target.value); draw(); });
$("count").addEventListener("change", (event) => {
  const count = Math.min(12, Math.max(2, Math.round(Number(event.target.value)) || 2));
  event.target.value = count;
  while (state.scores.length < count) state.scores.push(clamp(HIGHEST * Math.random()));
  state.scores.length = count;
  rebuild();
});
$("shuffle").addEventListener("click", () => {
  state.scores = state.scores.map(() => clamp(HIGHEST * Math.random()));
  draw();
});
state.tau = 10 ** Number($("tau").value);
rebuild();
