/* A context cut into partitions, and what each of them brings to the merge: drag the borders, and the result stays. One
   query head and one dimension of v. Scores are natural ones: the kernel's are multiplied by log2(e), and change nothing. */
(() => {
  const { define, html, svg, canvas, speaker, step: stepped } = window.Figures;
  const TOKENS = 48;
  const MOST = 6; // partitions
  const usual = (t) => 1.7 * Math.sin(0.71 * t) + 1.2 * Math.cos(1.93 * t + 1);
  const SCORES = {
    "as they come": usual,
    "one outlier": (t) => (t === 29 ? 9 : usual(t)),
    "rising": (t) => (12 * t) / (TOKENS - 1) - 6,
    "none in 16 to 31": (t) => (t >= 16 && t < 32 ? -Infinity : usual(t)),
  };
  const VALUES = Array.from({ length: TOKENS }, (_, t) => Math.cos(0.31 * t) + 0.4);
  const EXACT = (x) => x;

  /* The state of tokens [begin, end), each operation rounded by `round`. Nothing seen: m = -inf, l = 0, o = 0. */
  function read(scores, begin, end, round) {
    let m = -Infinity;
    for (let t = begin; t < end; t++) m = Math.max(m, round(scores[t]));
    let [l, o] = [0, 0];
    for (let t = begin; t < end && m > -Infinity; t++) {
      const weight = round(Math.exp(round(round(scores[t]) - m)));
      l = round(l + weight);
      o = round(o + round(weight * round(VALUES[t])));
    }
    return { m, l, o };
  }

  function merge(a, b, round) {
    const m = Math.max(a.m, b.m);
    if (m === -Infinity) return a;
    const [x, y] = [a, b].map((one) => round(Math.exp(round(one.m - m))));
    return { m, l: round(round(a.l * x) + round(b.l * y)), o: round(round(a.o * x) + round(b.o * y)) };
  }
  const mergeAll = (partials, round) => partials.reduce((sum, one) => merge(sum, one, round));
  const quotient = ({ l, o }, round = EXACT) => (l === 0 ? 0 : round(o / l));
  const number = (x, digits = 3) => (x === -Infinity ? "−∞" : x.toFixed(digits).replace(/^-/, "−"));

  function build(root) {
    const state = { kind: "one outlier", borders: [12, 24, 36], chosen: 0, backwards: false };
    const scores = () => Array.from({ length: TOKENS }, (_, t) => SCORES[state.kind](t));
    const edges = () => [0, ...state.borders, TOKENS];
    const status = speaker();

    const radios = (name, label, options, checked, pick) => html("div", { class: "fig-buttons", role: "radiogroup", "aria-label": label },
      html("span", {}, label), ...options.map((text, i) => {
        const radio = html("input", { type: "radio", name, value: text });
        radio.checked = i === checked;
        radio.addEventListener("change", () => { pick(text, i); update(); });
        return html("label", { class: "fig-radio" }, radio, html("span", {}, text));
      }));
    const kinds = radios("merge-scores", "scores", Object.keys(SCORES), 1, (text) => { state.kind = text; });
    const order = radios("merge-order", "order", ["first to last", "last to first"], 0, (_, i) => { state.backwards = i === 1; });
    const button = (text, label, act) => {
      const node = html("button", { type: "button", "aria-label": label }, text);
      node.addEventListener("click", () => { act(); update(); });
      return node;
    };
    const equal = (count) => {
      const size = Math.ceil(TOKENS / count);
      state.borders = Array.from({ length: count - 1 }, (_, i) => Math.min(TOKENS, (i + 1) * size));
      state.chosen = Math.max(0, Math.min(state.chosen, count - 2));
    };
    const parts = () => state.borders.length + 1;
    const fewer = button("− partition", "one partition less", () => { if (parts() > 1) equal(parts() - 1); });
    const more = button("+ partition", "one partition more", () => { if (parts() < MOST) equal(parts() + 1); });
    const next = button("next border", "choose the next border", () => {
      if (state.borders.length) state.chosen = (state.chosen + 1) % state.borders.length;
    });
    const place = html("output", { class: "fig-place" });
    const steps = html("div", { class: "fig-buttons", role: "group", "aria-label": "partitions" }, fewer, more, next, place);

    const map = canvas({ class: "me-map", tabindex: 0, role: "slider", "aria-label": "Border between two partitions" }, drawMap);
    const table = html("table", { class: "me-table" });
    const facts = html("dl", { class: "fig-facts" });
    root.append(kinds, steps, map.node, html("div", { class: "fig-row co-counts" },
      html("div", { class: "fig-side" }, html("p", { class: "fig-label" }, "what each partition leaves"), table),
      html("div", { class: "fig-side" }, html("p", { class: "fig-label" }, "the merge"), order, facts)), status.node);

    /* A border stays between its neighbours; it may touch them, and then a partition is empty. */
    function limits() {
      const all = edges();
      return [all[state.chosen], all[state.chosen + 2]];
    }
    function move(to) {
      if (!state.borders.length) return;
      const [low, high] = limits();
      state.borders[state.chosen] = Math.min(high, Math.max(low, to));
      update();
    }
    map.node.addEventListener("keydown", (event) => {
      if (!state.borders.length) return;
      const to = stepped(event.key, state.borders[state.chosen], ...limits(), 4);
      if (to === undefined) return;
      event.preventDefault();
      move(to);
    });
    let held = false;
    const at = (event) => {
      const box = map.node.getBoundingClientRect();
      return Math.round(((event.clientX - box.left) / box.width) * TOKENS);
    };
    map.node.addEventListener("pointerdown", (event) => {
      if (!state.borders.length) return;
      const t = at(event);
      const away = state.borders.map((border) => Math.abs(border - t));
      state.chosen = away.indexOf(Math.min(...away));
      held = true;
      map.node.setPointerCapture(event.pointerId);
      move(t);
    });
    map.node.addEventListener("pointermove", (event) => { if (held) move(at(event)); });
    for (const name of ["pointerup", "pointercancel"]) map.node.addEventListener(name, () => { held = false; });

    function partials(round) {
      const all = edges();
      return all.slice(1).map((end, p) => read(scores(), all[p], end, round));
    }

    function sentence(found, merged) {
      if (!state.borders.length) return `One partition has all ${TOKENS} tokens. There is nothing to merge: the result is ${number(quotient(merged), 4)}.`;
      const border = state.borders[state.chosen];
      const sides = [state.chosen, state.chosen + 1].map((p) => {
        const { m, l } = found[p];
        const name = `Partition ${p}`;
        if (l === 0) return `${name} has nothing to read and leaves m = −∞, ℓ = 0.`;
        return `${name} leaves m = ${number(m, 2)}, ℓ = ${number(l, 2)}, and counts ${factor(m, merged.m)} times.`;
      });
      return `Border ${state.chosen + 1} of ${state.borders.length} is before token ${border}. ${sides.join(" ")} The result is ${number(quotient(merged), 4)}, as in one pass.`;
    }
    const factor = (m, largest) => {
      const x = m === -Infinity ? 0 : Math.exp(m - largest);
      return x === 0 || x >= 0.001 ? number(x) : x.toExponential(1).replace("e-", "e−");
    };

    function update() {
      const [found, single] = [partials(EXACT), partials(Math.fround)];
      const turn = (list) => (state.backwards ? [...list].reverse() : list);
      const merged = mergeAll(turn(found), EXACT);
      const whole = read(scores(), 0, TOKENS, EXACT);
      const all = edges();
      fewer.setAttribute("aria-disabled", parts() === 1);
      more.setAttribute("aria-disabled", parts() === MOST);
      next.setAttribute("aria-disabled", state.borders.length < 2);
      place.textContent = `${parts()} partition${parts() > 1 ? "s" : ""}`;
      const cells = (tag, texts, more = {}) => html("tr", more, ...texts.map((text) => html(tag, {}, text)));
      table.replaceChildren(
        html("thead", {}, cells("th", ["tokens", "m", "ℓ", "o", "counts ×"])),
        html("tbody", {}, ...found.map(({ m, l, o }, p) => {
          const near = state.borders.length && (p === state.chosen || p === state.chosen + 1);
          const tokens = all[p] === all[p + 1] ? "none" : `${all[p]}–${all[p + 1] - 1}`;
          return cells("td", [tokens, number(m, 2), number(l, 2), number(o, 2), factor(m, merged.m)], near ? { class: "near" } : {});
        })));
      const rows = [
        ["m, the largest", number(merged.m, 2)],
        ["ℓ, brought to it", number(merged.l)],
        ["o, brought to it", number(merged.o)],
        ["o ÷ ℓ, merged", number(quotient(merged), 9), "strong me-merged"],
        ["o ÷ ℓ, in one pass", number(quotient(whole), 9), "strong me-whole"],
        ["merged in fp32", number(quotient(mergeAll(turn(single), Math.fround), Math.fround), 9), "me-single"],
      ];
      facts.replaceChildren(...rows.flatMap(([key, value, cls = ""]) => [html("dt", {}, key), html("dd", { class: cls }, value)]));
      const said = sentence(found, merged);
      const [low, high] = state.borders.length ? limits() : [0, TOKENS];
      for (const [name, value] of Object.entries({ valuemin: low, valuemax: high, valuenow: state.borders[state.chosen] ?? TOKENS, valuetext: said })) {
        map.node.setAttribute(`aria-${name}`, value);
      }
      map.node.setAttribute("aria-disabled", state.borders.length === 0);
      map.redraw();
      status.say(said);
    }

    /* Scores as bars, partitions as ground, borders as handles. */
    function drawMap(width, node) {
      const all = edges();
      const list = scores();
      const [top, height] = [44, 110];
      const pitch = width / TOKENS;
      const [low, high] = [-6.5, 9.5];
      const y = (score) => top + height * (1 - (score - low) / (high - low));
      all.slice(1).forEach((end, p) => {
        const [x, w] = [all[p] * pitch, (end - all[p]) * pitch];
        node.append(svg("rect", { x, y: top, width: w, height, class: `me-part ${p % 2 ? "odd" : ""}` }));
        if (w > 14) node.append(label(p, x + w / 2, top + height + 17, "small"));
        const best = read(list, all[p], end, EXACT).m;
        if (best > -Infinity) node.append(svg("line", { x1: x + 1, x2: x + w - 1, y1: y(best), y2: y(best), class: "me-max" }));
      });
      list.forEach((score, t) => {
        const bar = score === -Infinity ? 0 : top + height - y(score);
        node.append(svg("rect", { x: t * pitch + pitch * 0.15, y: top + height - bar, width: pitch * 0.7, height: bar, class: "me-score", "data-score": score, "data-value": VALUES[t] }));
      });
      state.borders.forEach((border, i) => {
        const x = border * pitch;
        const on = i === state.chosen ? "chosen" : "";
        node.append(svg("line", { x1: x, x2: x, y1: top - 8, y2: top + height, class: `me-border ${on}` }),
          svg("circle", { cx: x, cy: top - 14, r: 8, class: `me-handle ${on}` }));
      });
      node.append(label("scores, and the largest of each partition", 0, 12, "small", "start"));
      return top + height + 24;
    }
    update();
  }

  function label(text, x, y, cls, anchor = "middle") {
    return svg("text", { x, y, "text-anchor": anchor, class: cls }, String(text));
  }

  define("merge-explorer", build);
})();
