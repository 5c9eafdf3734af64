/* Twelve tokens from logits to a choice: temperature, filters, and a draw by the largest sum of logit and noise. Noise is that
   of qwen3_ref/gumbel.py, bit for bit: fround rounds each operation to float32. */
(() => {
  const { define, html, svg, canvas, speaker } = window.Figures;
  const PROMPT = "The little dog was very";
  const TOKENS = ["happy", "tired", "sad", "small", "brave", "hungry", "good", "old", "fast", "wet", "blue", "seven"];
  const LOGITS = [3.2, 2.6, 2.3, 1.9, 1.5, 1.2, 0.8, 0.3, -0.2, -0.9, -1.8, -3].map(Math.fround);
  const DRAWS = 1000;
  const { fround } = Math;
  const LN_2 = fround(0.6931471805599453);
  const SQRT_HALF_BITS = 0x3f3504f3;
  const floats = new Float32Array(1);
  const bits = new Int32Array(floats.buffer);

  /* The upper 32 bits of a product. */
  function high(a, b) {
    const [al, ah, bl, bh] = [a & 0xffff, a >>> 16, b & 0xffff, b >>> 16];
    const middle = ah * bl + ((al * bl) >>> 16);
    return (ah * bh + Math.floor(middle / 65536) + Math.floor((al * bh + (middle % 65536)) / 65536)) >>> 0;
  }
  function philox(counter, key) {
    let [c, [k0, k1]] = [counter, key];
    for (let round = 0; round < 10; round++) {
      c = [(high(0xcd9e8d57, c[2]) ^ c[1] ^ k0) >>> 0, Math.imul(0xcd9e8d57, c[2]) >>> 0,
        (high(0xd2511f53, c[0]) ^ c[3] ^ k1) >>> 0, Math.imul(0xd2511f53, c[0]) >>> 0];
      [k0, k1] = [(k0 + 0x9e3779b9) >>> 0, (k1 + 0xbb67ae85) >>> 0];
    }
    return c;
  }
  function logOfRatio(difference, total) {
    const z = fround(difference / total);
    const square = fround(z * z);
    let series = fround(square * fround(1 / 9));
    for (const divisor of [7, 5, 3]) series = fround(fround(series + fround(1 / divisor)) * square);
    return fround(fround(z + z) * fround(series + 1));
  }
  function naturalLog(y) {
    floats[0] = y;
    const exponent = (bits[0] - SQRT_HALF_BITS) >> 23;
    bits[0] -= exponent << 23;
    const mantissa = floats[0];
    return fround(fround(exponent * LN_2) + logOfRatio(fround(mantissa - 1), fround(mantissa + 1)));
  }
  function gumbel(word) {
    const unit = (number) => fround(fround(fround(number) + 0.5) * 2 ** -32);
    const v = unit(word);
    const logU = word < 2 ** 30 ? logOfRatio(-v, fround(2 - v)) : naturalLog(unit(~word >>> 0));
    return -naturalLog(-logU);
  }
  /* The noise of each token in a draw of a seed. */
  function noiseOf(seed, draw) {
    const groups = Array.from({ length: Math.ceil(TOKENS.length / 4) }, (_, group) => philox([group, 0, draw, 0], [seed, 0]));
    return groups.flat().slice(0, TOKENS.length).map(gumbel);
  }

  /* Of each token: logit less the largest, probability before the filters and after, and what dropped it. */
  function filtered({ temperature, topK, topP, minP }) {
    const greedy = temperature < 1e-6;
    const below = LOGITS.map((x) => (greedy ? fround(x - LOGITS[0]) : fround(fround(x / fround(temperature)) - fround(LOGITS[0] / fround(temperature)))));
    const mass = below.map(Math.exp);
    const sum = (values) => values.reduce((a, b) => a + b, 0);
    const dropped = below.map(() => "");
    const drop = (name, out) => dropped.forEach((by, i) => { if (!by && out(i)) dropped[i] = name; });
    if (greedy) drop("greedy", (i) => i > 0);
    else {
      if (topK > 0) drop("top-k", (i) => i >= topK);
      const total = sum(mass.filter((_, i) => !dropped[i]));
      let before = 0; // share of likelier tokens: the tokens stand in the order of their logits
      const shares = mass.map((m) => { const share = before / total; before += m; return share; });
      if (topP < 1) drop("top-p", (i) => i > 0 && shares[i] >= topP);
      if (minP > 0) drop("min-p", (i) => mass[i] < minP);
    }
    const kept = sum(mass.filter((_, i) => !dropped[i]));
    return below.map((x, i) => ({ token: TOKENS[i], below: x, before: mass[i] / sum(mass), after: dropped[i] ? 0 : mass[i] / kept, dropped: dropped[i] }));
  }
  /* The first of the largest sums. */
  function winner(rows, noise) {
    const sums = rows.map(({ below, dropped }, i) => (dropped ? -Infinity : fround(below + noise[i])));
    return sums.indexOf(Math.max(...sums));
  }

  function build(root) {
    const state = { temperature: 1, topK: 0, topP: 1, minP: 0, seed: 1, draw: 0 };
    const noises = { seed: undefined, draws: [] };
    const status = speaker();
    const inputs = {};
    function control(name, label, min, max, step, say = String) {
      const input = html("input", { type: "range", min, max, step, "aria-label": label });
      const output = html("output");
      inputs[name] = { input, show: () => { input.value = state[name]; output.textContent = say(state[name]); input.setAttribute("aria-valuetext", say(state[name])); } };
      input.addEventListener("input", () => { state[name] = Number(input.value); update(); });
      return html("label", { class: `fig-slider ${name === "seed" || name === "draw" ? "se-noise" : "q"}` }, html("span", {}, label), output, input);
    }
    const fixed = (x) => x.toFixed(2);
    const filters = [
      control("temperature", "temperature", 0, 2.5, 0.05, (x) => (x ? fixed(x) : "0, greedy")),
      control("topK", "top-k", 0, TOKENS.length, 1, (x) => (x ? String(x) : "0, all")),
      control("topP", "top-p", 0.05, 1, 0.05, (x) => (x < 1 ? fixed(x) : "1, all")),
      control("minP", "min-p", 0, 0.5, 0.01, (x) => (x ? fixed(x) : "0, all")),
    ];
    const random = [control("seed", "seed", 0, 99, 1), control("draw", "draw", 0, DRAWS - 1, 1)];
    const next = html("button", { type: "button" }, "next draw");
    next.addEventListener("click", () => { state.draw = (state.draw + 1) % DRAWS; update(); });
    const facts = html("dl", { class: "fig-facts" });
    const map = canvas({ class: "se-map", role: "img" }, draw);
    root.append(html("div", { class: "fig-row co-counts" }, html("div", { class: "fig-side" }, ...filters),
      html("div", { class: "fig-side" }, ...random, html("div", { class: "fig-buttons" }, next), facts)), map.node, status.node);

    let now;
    function update() {
      if (noises.seed !== state.seed) {
        noises.seed = state.seed;
        noises.draws = Array.from({ length: DRAWS }, (_, i) => noiseOf(state.seed, i));
      }
      const rows = filtered(state);
      const noise = noises.draws[state.draw];
      const counts = rows.map(() => 0);
      for (const one of noises.draws) counts[winner(rows, one)]++;
      now = { rows, noise, counts, chosen: winner(rows, noise) };
      const [kept, best] = [rows.filter((row) => !row.dropped), rows[now.chosen]];
      const percent = (x) => `${(100 * x).toFixed(1)} %`;
      Object.values(inputs).forEach((one) => one.show());
      facts.replaceChildren(...[
        ["tokens kept", `${kept.length} of ${rows.length}`, "se-kept"],
        ["their share before", percent(kept.reduce((sum, row) => sum + row.before, 0)), "se-share"],
        ["the draw takes", best.token, "strong se-chosen"],
        ["its probability", percent(best.after), "se-probability"],
        [`its share of ${DRAWS.toLocaleString("en")} draws`, percent(counts[now.chosen] / DRAWS), "se-frequency"],
      ].flatMap(([key, value, cls]) => [html("dt", {}, key), html("dd", { class: cls }, value)]));
      const said = `“${PROMPT} …” ${kept.length} of ${rows.length} tokens are kept. `
        + (state.temperature ? `Draw ${state.draw} of seed ${state.seed} takes “${best.token}”: ${now.chosen ? `its logit is ${fixed(-best.below)} below the largest, its noise` : "its logit is the largest, its noise"} ${signed(noise[now.chosen])}.`
          : `Greedy decoding takes “${best.token}”, whatever the noise.`);
      map.node.setAttribute("aria-label", said);
      map.redraw();
      status.say(said);
    }

    /* A line for each token: probability before and after the filters at the left, logit and noise at the right. */
    function draw(width, node) {
      const [roof, pitch, high, names] = [36, 22, 13, 56];
      const middle = names + (width - names) * 0.4;
      const bar = (p) => names + (middle - names - 10) * p;
      const [least, most] = [-8, 6];
      const x = (value) => middle + 8 + (width - middle - 14) * (Math.min(most, Math.max(least, value)) - least) / (most - least);
      const floor = roof + now.rows.length * pitch;
      node.append(label("probability", names, 12, "small"), label("logit − largest, + noise", middle + 8, 12, "small"));
      for (const mark of [-8, -4, 0, 4]) {
        node.append(svg("line", { x1: x(mark), x2: x(mark), y1: roof - 4, y2: floor, class: "lr-grid" }), label(String(mark).replace("-", "−"), x(mark), roof - 8, "small", "middle"));
      }
      now.rows.forEach((row, i) => {
        const top = roof + i * pitch;
        const y = top + high / 2 + 2;
        const chosen = i === now.chosen ? "chosen" : "";
        node.append(svg("g", { class: `se-row ${row.dropped ? "dropped" : ""} ${chosen}`, "data-token": row.token, "data-noise": now.noise[i], "data-count": now.counts[i], "data-after": row.after, "data-dropped": row.dropped },
          label(row.token, 0, y + 4, chosen ? "strong" : row.dropped ? "small" : ""),
          svg("rect", { x: names, y: top + 2, width: bar(row.before) - names, height: high, class: "se-before" }),
          svg("rect", { x: names, y: top + 2, width: bar(row.after) - names, height: high, class: "se-after" })));
        if (row.dropped) {
          node.append(label(row.dropped, middle + 8, y + 4, "small"));
          return;
        }
        const share = bar(now.counts[i] / DRAWS);
        node.append(svg("line", { x1: share, x2: share, y1: top, y2: top + high + 4, class: "se-count" }),
          svg("line", { x1: x(row.below), x2: x(row.below + now.noise[i]), y1: y, y2: y, class: `se-noise ${chosen}` }),
          svg("circle", { cx: x(row.below), cy: y, r: 3, class: "se-logit" }),
          svg("circle", { cx: x(row.below + now.noise[i]), cy: y, r: 5, class: `se-sum ${chosen}` }));
      });
      return floor + 4;
    }
    update();
  }

  const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;
  function label(text, x, y, cls, anchor = "start") {
    return svg("text", { x, y, "text-anchor": anchor, class: cls }, text);
  }

  define("sampling-explorer", build);
})();
