/* RoPE: one pair of channels turns with the position, and a dot product sees only the distance.
   Every pair of this head holds the same vector: length 1 as a query, 0.8 as a key. */
(() => {
  const { define, html, svg, canvas, slider, speaker, step } = window.Figures;
  const PAIRS = 64;
  const THETA = 1e6;
  const LAST = 32767; // the last position of a context of 32,768 tokens
  const RAW = Math.PI / 7; // direction before any rotation
  const LENGTH = { q: 1, k: 0.8 };
  const TURN = 2 * Math.PI;

  const omega = (i) => THETA ** (-i / PAIRS); // θ^(−2i/128) radians a token
  const vector = (who, position, i) => {
    const angle = RAW + position * omega(i);
    return [LENGTH[who] * Math.cos(angle), LENGTH[who] * Math.sin(angle)];
  };
  const pairDot = (m, n, i) => {
    const [a, b] = vector("q", m, i);
    const [c, d] = vector("k", n, i);
    return a * c + b * d;
  };
  const headDot = (m, n) => {
    let sum = 0;
    for (let i = 0; i < PAIRS; i++) sum += pairDot(m, n, i);
    return sum;
  };

  const digits = (x, n) => x.toLocaleString("en", { minimumFractionDigits: n, maximumFractionDigits: n }).replace("-", "−");
  const compact = (x) => (x < 100 ? digits(x, 1) : x < 1e6 ? digits(x, 0) : `${digits(x / 1e6, 2)} million`);
  function turned(angle) {
    const turns = Math.floor(angle / TURN);
    const rest = (angle - turns * TURN) * (180 / Math.PI);
    return turns ? `${digits(turns, 0)} turn${turns > 1 ? "s" : ""} + ${digits(rest, 0)}°` : `${digits(rest, rest < 10 ? 1 : 0)}°`;
  }

  // Distances for the curve: every token at first, then evenly on a logarithmic scale.
  const DISTANCES = [...new Set(Array.from({ length: 700 }, (_, t) => Math.round(Math.exp((t / 699) * Math.log(LAST + 1)) - 1)))];
  const CURVE = DISTANCES.map((d) => headDot(d, 0));

  function build(root) {
    const state = { i: 14, m: 9, n: 4 };
    const status = speaker();

    const dial = canvas({ role: "img", "aria-label": "The pair of the query and of the key, turned by their positions" }, drawDial);
    const hands = canvas({
      class: "rope-hands", tabindex: 0, role: "slider", "aria-label": "Pair i", "aria-valuemin": 0, "aria-valuemax": PAIRS - 1,
    }, drawHands);
    const curve = canvas({ class: "rope-curve", role: "img", "aria-label": "q·k of the whole head against the distance m − n" }, drawCurve);

    const sliders = {
      m: slider({ label: "query at position m", tone: "q", min: 0, max: LAST, page: 64, say: (v) => `query at position ${v}`, changed: (v) => place("m", v) }),
      n: slider({ label: "key at position n", tone: "k", min: 0, max: LAST, page: 64, say: (v) => `key at position ${v}`, changed: (v) => place("n", v) }),
    };
    const shifts = html("div", { class: "fig-buttons", role: "group", "aria-label": "shift both positions" },
      html("span", {}, "shift both"),
      ...[-100, -1, 1, 100].map((by) => {
        const text = (by > 0 ? "+" : "−") + Math.abs(by);
        const button = html("button", { type: "button", "aria-label": `shift both by ${text}` }, text);
        button.addEventListener("click", () => shift(by));
        return button;
      }));
    const facts = html("dl", { class: "fig-facts" });

    root.append(
      html("div", { class: "fig-row" }, html("div", { class: "fig-picture" }, dial.node),
        html("div", { class: "fig-side" }, sliders.m.node, sliders.n.node, shifts, facts)),
      html("p", { class: "fig-label" }, "All 64 pairs of the head, as hands at positions ", html("b", { class: "q" }, "m"), " and ",
        html("b", { class: "k" }, "n"), ": choose one"),
      hands.node,
      html("p", { class: "fig-label" }, "q·k of the whole head against the distance m − n"),
      curve.node,
      status.node,
    );

    /* A key lies at or before its query: moving one past the other takes it along. */
    function place(who, position) {
      state[who] = position;
      if (who === "m") state.n = Math.min(state.n, position);
      else state.m = Math.max(state.m, position);
      update();
    }
    function shift(by) {
      const before = headDot(state.m, state.n);
      const move = Math.max(-state.n, Math.min(LAST - state.m, by));
      state.m += move;
      state.n += move;
      update();
      const still = digits(headDot(state.m, state.n), 3) === digits(before, 3) ? "stays" : "is now";
      status.say(`Both moved by ${digits(move, 0)}: the hands turned, and q·k ${still} ${digits(headDot(state.m, state.n), 3)}.`);
    }
    function choose(i) {
      state.i = i;
      update();
    }
    hands.node.addEventListener("keydown", (event) => {
      const next = step(event.key, state.i, 0, PAIRS - 1, 8);
      if (next === undefined) return;
      event.preventDefault();
      choose(next);
    });
    const pick = (event) => {
      const hit = document.elementFromPoint(event.clientX, event.clientY)?.closest("[data-pair]");
      if (hit && hands.node.contains(hit)) choose(Number(hit.dataset.pair));
    };
    hands.node.addEventListener("pointerdown", (event) => {
      hands.node.focus({ preventScroll: true });
      hands.node.setPointerCapture(event.pointerId); // what was touched is drawn anew, and a finger would lose it
      pick(event);
    });
    hands.node.addEventListener("pointermove", (event) => event.buttons && pick(event));

    function update() {
      const { i, m, n } = state;
      const w = omega(i);
      sliders.m.set(m);
      sliders.n.set(n);
      hands.node.setAttribute("aria-valuenow", i);
      hands.node.setAttribute("aria-valuetext", `pair ${i}, wavelength ${compact(TURN / w)} tokens`);
      const rows = [
        ["a token turns pair i by", `${digits(w * (180 / Math.PI), w > 0.02 ? 1 : w > 2e-4 ? 3 : 5)}°`, ""],
        ["a full turn takes", `${compact(TURN / w)} tokens`, ""],
        ["q turns by m·ω", turned(m * w), "q"],
        ["k turns by n·ω", turned(n * w), "k"],
        ["between them (m − n)·ω", turned((m - n) * w), ""],
        ["q·k of this pair", digits(pairDot(m, n, i), 3), "strong"],
        ["q·k of all 64 pairs", digits(headDot(m, n), 3), "strong"],
      ];
      facts.replaceChildren(...rows.flatMap(([name, value, tone]) => [html("dt", {}, name), html("dd", { class: tone }, value)]));
      dial.redraw();
      hands.redraw();
      curve.redraw();
      status.say(`Pair ${i} (channels ${i} and ${i + PAIRS}): q at ${m} and k at ${n} lie ${turned((m - n) * w)} apart, as for every two positions ${m - n} apart.`);
    }

    function drawDial(width, node) {
      const size = Math.min(width, 340);
      const [cx, cy, radius] = [width / 2, size / 2, size / 2 - 34];
      const at = (angle, r) => [cx + radius * r * Math.cos(angle), cy - radius * r * Math.sin(angle)];
      const line = (from, to, cls) => svg("line", { x1: from[0], y1: from[1], x2: to[0], y2: to[1], class: cls });
      const { i, m, n } = state;
      node.append(
        svg("circle", { cx, cy, r: radius, class: "ring" }),
        line([cx - radius - 8, cy], [cx + radius + 8, cy], "axis"), line([cx, cy - radius - 8], [cx, cy + radius + 8], "axis"),
        label(`x${sub(i)}`, cx + radius + 4, cy + 18, "middle"), label(`x${sub(i + PAIRS)}`, cx, cy - radius - 14, "middle"),
        line([cx, cy], at(RAW, 1), "raw"), label("position 0", ...at(RAW, 1.04), "start", "small"),
      );
      for (const [who, position, inner] of [["q", m, 0.5], ["k", n, 0.3]]) {
        const angle = position * omega(i);
        const tip = at(RAW + angle, LENGTH[who]);
        node.append(svg("path", { d: spiral(angle, inner, at), class: `sweep ${who}` }), line([cx, cy], tip, `vector ${who}`));
      }
      // Handles and names last, above every line. Names keep apart when the vectors meet.
      for (const [who, position] of [["k", n], ["q", m]]) {
        const angle = RAW + position * omega(i);
        const [x, y] = at(angle, LENGTH[who]);
        const handle = svg("circle", { cx: x, cy: y, r: 8, class: `handle ${who}` });
        handle.addEventListener("pointerdown", (event) => drag(event, who === "q" ? "m" : "n", node, cx, cy));
        const [tx, ty] = who === "q" ? at(angle, LENGTH.q + 0.17) : at(angle - 0.24, LENGTH.k);
        node.append(handle, label(who, tx, ty + 5, "middle", `name ${who}`));
      }
      return size;
    }

    /* The way from position 0 to here, at most three turns of it: more would be a disc. */
    function spiral(angle, inner, at) {
      const start = Math.max(0, angle - 3 * TURN);
      const steps = Math.max(2, Math.ceil((angle - start) / 0.1));
      return Array.from({ length: steps + 1 }, (_, s) => {
        const a = start + ((angle - start) * s) / steps;
        const r = inner + (0.16 * (a - start)) / (3 * TURN);
        return `${s ? "L" : "M"}${at(RAW + a, r).map((v) => v.toFixed(1)).join(" ")}`;
      }).join("");
    }

    function drag(down, who, node, cx, cy) {
      down.preventDefault();
      let exact = state[who];
      const angleOf = (event) => {
        const box = node.getBoundingClientRect();
        return Math.atan2(cy - (event.clientY - box.top), event.clientX - box.left - cx);
      };
      let last = angleOf(down);
      const move = (event) => {
        const now = angleOf(event);
        const delta = Math.atan2(Math.sin(now - last), Math.cos(now - last));
        last = now;
        exact = Math.min(LAST, Math.max(0, exact + delta / omega(state.i)));
        place(who, Math.round(exact));
      };
      const stop = () => {
        node.removeEventListener("pointermove", move);
        node.removeEventListener("lostpointercapture", stop);
      };
      node.addEventListener("pointermove", move);
      node.addEventListener("lostpointercapture", stop);
      node.setPointerCapture(down.pointerId); // the handle itself is drawn anew at each move
    }

    function drawHands(width, node) {
      const columns = 16;
      const cell = width / columns;
      const r = Math.min(cell / 2 - 2, 14);
      const row = 2 * r + 6;
      for (let i = 0; i < PAIRS; i++) {
        const [x, y] = [((i % columns) + 0.5) * cell, (Math.floor(i / columns) + 0.5) * row];
        const group = svg("g", { "data-pair": i, class: i === state.i ? "hand chosen" : "hand" },
          svg("circle", { cx: x, cy: y, r }));
        for (const [who, position, length] of [["k", state.n, 0.68], ["q", state.m, 0.9]]) {
          const angle = RAW + position * omega(i);
          group.append(svg("line", { x1: x, y1: y, x2: x + r * length * Math.cos(angle), y2: y - r * length * Math.sin(angle), class: who }));
        }
        group.append(svg("rect", { x: x - cell / 2, y: y - row / 2, width: cell, height: row, class: "hit" }), // over all else
          svg("title", {}, `pair ${i}: a full turn takes ${compact(TURN / omega(i))} tokens`));
        node.append(group);
      }
      const bottom = (PAIRS / columns) * row;
      node.append(label("first: pair 0, fastest", 2, bottom + 14, "start", "small"),
        label(`pair ${state.i}`, width / 2, bottom + 14, "middle", "small strong"),
        label("last: pair 63, slowest", width - 2, bottom + 14, "end", "small"));
      return bottom + 20;
    }

    function drawCurve(width, node) {
      const [left, right, top, bottom] = [30, width - 8, 10, 88];
      const x = (d) => left + ((right - left) * Math.log(d + 1)) / Math.log(LAST + 1);
      const high = PAIRS * LENGTH.q * LENGTH.k;
      const y = (value) => bottom - ((bottom - top) * (value + 10)) / (high + 10);
      const path = DISTANCES.map((d, t) => `${t ? "L" : "M"}${x(d).toFixed(1)} ${y(CURVE[t]).toFixed(1)}`).join("");
      node.append(svg("line", { x1: left, y1: y(0), x2: right, y2: y(0), class: "axis" }), label("0", left - 8, y(0) + 4, "end", "small"),
        label(digits(high, 0), left - 8, y(high) + 5, "end", "small"), svg("path", { d: path, class: "line" }));
      for (const d of [0, 1, 10, 100, 1000, 10000]) {
        node.append(svg("line", { x1: x(d), y1: bottom, x2: x(d), y2: bottom + 4, class: "axis" }),
          label(d.toLocaleString("en"), x(d), bottom + 17, "middle", "small"));
      }
      const d = state.m - state.n;
      const [px, py] = [x(d), y(headDot(state.m, state.n))];
      const flip = px > width * 0.62;
      node.append(svg("line", { x1: px, y1: top, x2: px, y2: bottom, class: "cursor" }), svg("circle", { cx: px, cy: py, r: 5, class: "dot" }),
        label(`m − n = ${d.toLocaleString("en")}: ${digits(headDot(state.m, state.n), 1)}`, px + (flip ? -10 : 10), top + 6, flip ? "end" : "start", "small strong"));
      return bottom + 24;
    }
    update();
  }

  function label(text, x, y, anchor, cls = "") {
    return svg("text", { x, y, "text-anchor": anchor, class: cls }, text);
  }
  function sub(number) {
    return String(number).replace(/\d/g, (digit) => "₀₁₂₃₄₅₆₇₈₉"[digit]);
  }

  define("rope-rotation", build);
})();
