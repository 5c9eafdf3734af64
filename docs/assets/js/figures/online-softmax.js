/* Online softmax, token by token: the running maximum m, the sum ℓ and the output o of one dimension, and what a new maximum
   does to them. The arithmetic is that of v1 (a token a step) and of v3 (four tokens a step), in double precision. */
(() => {
  const { define, html, svg, canvas, speaker, step: stepped } = window.Figures;
  const SCORES = [0.4, 1.7, -0.8, 2.6, 0.1, 1.2, 3.4, -1.5, 2.9, 0.9, 3.1, 1.6];
  const VALUES = [2, -1, 1, 3, -2, 1, 2, 4, -3, 5, -1, 0];
  const LEAST = -3.402823466e+38; // the least finite number of fp32
  const TOKENS = SCORES.map((score, i) => ({ name: i, score, value: VALUES[i] }));
  const with_ = (scores) => TOKENS.map((token) => ({ ...token, score: scores[token.name] ?? token.score }));
  const CASES = {
    given: { name: "as they come", tokens: TOKENS },
    rising: { name: "rising", tokens: [...TOKENS].sort((a, b) => a.score - b.score) },
    falling: { name: "falling", tokens: [...TOKENS].sort((a, b) => b.score - a.score) },
    hidden: { name: "some are −∞", tokens: with_({ 0: -Infinity, 1: -Infinity, 5: -Infinity }) },
    nan: { name: "one is NaN", tokens: with_({ 6: NaN }) },
    none: { name: "no token", tokens: [] },
  };
  const fmax = (a, b) => (Number.isNaN(a) ? b : Number.isNaN(b) ? a : Math.max(a, b)); // as fmaxf: NaN gives way
  const show = (x, digits = 3) => {
    if (Number.isNaN(x)) return "NaN";
    if (x === -Infinity) return "−∞";
    if (x === LEAST) return "−3.4·10³⁸";
    return x.toFixed(digits).replace("-", "−");
  };

  /* One entry for each step, the empty state first. `width` tokens share one new maximum. */
  function run(tokens, start, width) {
    const states = [{ m: start, l: 0, o: 0, factor: null, exponentials: 0, read: 0, before: start }];
    for (let first = 0; first < tokens.length; first += width) {
      const old = states.at(-1);
      const turn = tokens.slice(first, first + width);
      const m = turn.reduce((largest, { score }) => fmax(largest, score), old.m);
      const factor = Math.exp(old.m - m);
      const now = { m, l: old.l * factor, o: old.o * factor, factor, before: old.m, read: first + turn.length };
      for (const { score, value } of turn) {
        const weight = Math.exp(score - m);
        now.l += weight;
        now.o += weight * value;
      }
      now.exponentials = old.exponentials + 1 + turn.length;
      states.push(now);
    }
    return states;
  }
  const quotient = ({ l, o }) => (l === 0 ? 0 : o / l);

  function build(root) {
    const state = { which: CASES.given, start: LEAST, width: 1, t: 4 };
    const status = speaker();
    let states = [];

    const radios = (name, label, options, pick) => html("div", { class: "fig-buttons", role: "radiogroup", "aria-label": label },
      ...options.map(([text, value, checked]) => {
        const radio = html("input", { type: "radio", name, value: text });
        radio.checked = checked;
        radio.addEventListener("change", () => { pick(value); update(); });
        return html("label", { class: "fig-radio" }, radio, html("span", {}, text));
      }));
    const cases = radios("softmax-case", "which scores", Object.values(CASES).map((one) => [one.name, one, one === state.which]),
      (one) => { state.which = one; state.t = Math.min(state.t, Math.ceil(one.tokens.length / state.width)); });
    const widths = radios("softmax-width", "tokens in a step", [["a token a step", 1, true], ["four tokens a step", 4, false]], (width) => {
      const read = states[state.t].read;
      state.width = width;
      state.t = Math.ceil(read / width);
    });
    const starts = radios("softmax-start", "how m begins", [["m begins as the least finite number", LEAST, true], ["m begins as −∞", -Infinity, false]],
      (start) => { state.start = start; });
    const button = (text, label, target) => {
      const node = html("button", { type: "button", "aria-label": label }, text);
      node.addEventListener("click", () => go(target()));
      return node;
    };
    const first = button("start", "back to the start", () => 0);
    const back = button("‹ back", "one step back", () => state.t - 1);
    const next = button("step ›", "one step on", () => state.t + 1);
    const place = html("output", { class: "fig-place" });
    const steps = html("div", { class: "fig-buttons", role: "group", "aria-label": "steps" }, first, back, next, place);
    const map = canvas({ class: "os-map", tabindex: 0, role: "slider", "aria-label": "Steps taken", "aria-valuemin": 0 }, draw);
    const kept = html("dl", { class: "fig-facts" });
    const made = html("dl", { class: "fig-facts" });
    root.append(cases, widths, starts, steps, map.node, html("div", { class: "fig-row co-counts" },
      html("div", { class: "fig-side" }, html("p", { class: "fig-label" }, "what a reader keeps"), kept),
      html("div", { class: "fig-side" }, html("p", { class: "fig-label" }, "this step"), made)), status.node);

    const last = () => states.length - 1;
    function go(t) {
      state.t = Math.min(last(), Math.max(0, t));
      update();
    }
    map.node.addEventListener("keydown", (event) => {
      const t = stepped(event.key, state.t, 0, last(), 4);
      if (t === undefined) return;
      event.preventDefault();
      go(t);
    });
    const point = (event) => {
      const hit = document.elementFromPoint(event.clientX, event.clientY)?.closest("[data-token]");
      if (!hit || !map.node.contains(hit)) return;
      const t = Math.floor(Number(hit.dataset.token) / state.width) + 1;
      if (t !== state.t) go(t);
    };
    map.node.addEventListener("pointerdown", (event) => {
      map.node.setPointerCapture(event.pointerId);
      point(event);
    });
    map.node.addEventListener("pointermove", point);

    function sentence(now) {
      const { tokens } = state.which;
      if (tokens.length === 0) return "No token: ℓ is 0, and the kernel writes 0 instead of dividing by it.";
      if (state.t === 0) return `Nothing has been read: m is ${show(now.m)}, ℓ and o are 0.`;
      const turn = tokens.slice(states[state.t - 1].read, now.read);
      const scores = turn.map(({ score }) => show(score, 1)).join(", ");
      const who = turn.length === 1 ? `The token has score ${scores}` : `The tokens have scores ${scores}`;
      const raised = now.m > now.before;
      const empty = states[state.t - 1].l === 0;
      const change = Number.isNaN(now.factor) ? `${show(now.before)} − (${show(now.m)}) is NaN, and so is all that follows`
        : !raised ? `m stays ${show(now.m)} and nothing is rescaled`
          : empty ? `m becomes ${show(now.m)}; there was nothing to rescale`
            : `m rises from ${show(now.before)} to ${show(now.m)}, so ℓ and o are multiplied by ${show(now.factor)}`;
      const end = now.read === tokens.length ? "All are read: the result o ÷ ℓ is" : "So far o ÷ ℓ is";
      return `${who}: ${change}. ${end} ${show(quotient(now))}.`;
    }

    function update() {
      states = run(state.which.tokens, state.start, state.width);
      state.t = Math.min(state.t, last());
      const now = states[state.t];
      const { tokens } = state.which;
      place.textContent = `${now.read} of ${tokens.length} tokens read`;
      back.setAttribute("aria-disabled", state.t === 0);
      first.setAttribute("aria-disabled", state.t === 0);
      next.setAttribute("aria-disabled", state.t === last());
      map.node.setAttribute("aria-valuemax", last());
      map.node.setAttribute("aria-valuenow", state.t);
      map.node.setAttribute("aria-valuetext", sentence(now));
      const list = (rows) => rows.flatMap(([key, value, cls = ""]) => [html("dt", {}, key), html("dd", { class: cls }, value)]);
      kept.replaceChildren(...list([
        ["m, the largest score", show(now.m), "strong"],
        ["ℓ, the sum of weights", show(now.l), "strong"],
        ["o, the sum of weight · v", show(now.o), "strong"],
        ["o ÷ ℓ", show(quotient(now)), "strong"],
      ]));
      made.replaceChildren(...list([
        ["factor of the old sums", now.factor === null ? "–" : show(now.factor)],
        ["new weights", state.t === 0 ? "–" : tokens.slice(states[state.t - 1].read, now.read).map(({ score }) => show(Math.exp(score - now.m), 2)).join(" ")],
        ["exponentials so far", String(now.exponentials)],
        ["new maxima so far", String(states.slice(1, state.t + 1).filter(({ m, before }) => m > before).length)],
      ]));
      map.redraw();
      status.say(sentence(now));
    }

    /* Above: scores, and m as a line. Below: the weight of each token that was read, under the present m. */
    function draw(width, node) {
      const { tokens } = state.which;
      const now = states[state.t];
      const from = state.t > 0 ? states[state.t - 1].read : 0;
      const gutter = width < 560 ? 50 : 60;
      const [top, middle, bottom] = [16, 136, 226];
      const high = (score) => top + ((4 - score) / 6) * (middle - top);
      const pitch = (width - gutter) / Math.max(1, tokens.length);
      const bar = Math.min(30, pitch - 6);
      node.append(label("score", 0, top + 12, "start", "small"), label("weight", 0, middle + 34, "start", "small"),
        label("value", 0, bottom + 16, "start", "small"),
        svg("line", { x1: gutter, y1: high(0), x2: width, y2: high(0), class: "axis" }),
        svg("line", { x1: gutter, y1: bottom, x2: width, y2: bottom, class: "axis" }));
      if (now.m >= -2) { // a finite score has come
        node.append(svg("line", { x1: gutter, y1: high(now.m), x2: width, y2: high(now.m), class: "os-m" }),
          label(`m ${show(now.m, 1)}`, gutter - 6, high(now.m) + 4, "end", "small strong"));
      } else node.append(label(`m ${show(now.m)}`, 0, middle - 2, "start", "small strong"));
      if (tokens.length === 0) node.append(label("no token", gutter + (width - gutter) / 2, high(0) - 14, "middle", "small"));
      tokens.forEach(({ score, value, name }, i) => {
        const x = gutter + (i + 0.5) * pitch;
        const read = i < now.read;
        const fresh = read && i >= from;
        const cls = fresh ? "cell key chosen" : read ? "cell key" : "slot idle";
        if (Number.isFinite(score)) {
          const [y0, y1] = [high(0), high(score)];
          node.append(svg("rect", { x: x - bar / 2, y: Math.min(y0, y1), width: bar, height: Math.max(2, Math.abs(y1 - y0)), rx: 2, class: cls }));
        }
        const y = Number.isFinite(score) && score < 0 ? high(score) + 13 : high(Number.isFinite(score) ? Math.max(score, 0) : 0) - 4;
        node.append(label(show(score, 1), x, y, "middle", fresh ? "small strong" : "small"));
        const weight = Math.exp(score - now.m);
        if (read && weight >= 0) {
          const h = weight * (bottom - middle - 28);
          if (now.factor < 1 && !fresh && Number.isFinite(now.before)) { // what it weighed before this step
            const old = Math.min(1, Math.exp(score - now.before)) * (bottom - middle - 28);
            node.append(svg("rect", { x: x - bar / 2, y: bottom - old, width: bar, height: old, rx: 2, class: "slot idle" }));
          }
          node.append(svg("rect", { x: x - bar / 2, y: bottom - h, width: bar, height: h, rx: 2, class: `cell sum ${fresh ? "chosen" : ""}` }));
        } else if (read) node.append(label(show(weight), x, bottom - 6, "middle", "small strong"));
        node.append(label(String(value).replace("-", "−"), x, bottom + 16, "middle", fresh ? "small strong" : "small"),
          svg("rect", { x: x - pitch / 2, y: 0, width: pitch, height: bottom + 22, class: "hit", "data-token": i, "data-name": name }));
      });
      return bottom + 24;
    }
    update();
  }

  function label(text, x, y, anchor, cls = "") {
    return svg("text", { x, y, "text-anchor": anchor, class: cls }, String(text));
  }

  define("online-softmax", build);
})();
