/* A row of 128 weights as integers: drag one to become an outlier, and see what it costs the others. The arithmetic is that
   of chapters/ch08_w8a16_head/fake_quant.py, in fp32. */
(() => {
  const { define, html, svg, canvas, speaker } = window.Figures;
  const COUNT = 128;
  const LIMIT = 0.4; // as far as a weight can be dragged
  const SPREAD = 0.04;
  const REST = 0.12; // the largest of the row's other 896 weights, which are not shown but share a scale per channel
  const STEP = 0.01;
  const FIRST = { chosen: 44, value: 0.3 };
  const GROUPS = { 32: 32, 64: 64, 128: 128, "per channel": COUNT };
  const { fround } = Math;

  /* Nearly normal, and the same on every visit. */
  function drawn(seed, size) {
    let state = seed;
    const uniform = () => { state = (state * 48271) % 2147483647; return state / 2147483647; };
    return Array.from({ length: size }, () => {
      let sum = -6;
      for (let i = 0; i < 12; i++) sum += uniform();
      return sum;
    });
  }
  const WEIGHTS = drawn(8, COUNT).map((x) => fround(Math.max(-2.6, Math.min(2.6, x)) * SPREAD));
  const INPUT = drawn(21, COUNT).map(fround);

  function roundEven(x) {
    const low = Math.floor(x);
    if (x - low !== 0.5) return Math.round(x);
    return low % 2 === 0 ? low : low + 1;
  }
  const largest = (bits) => 2 ** (bits - 1) - 1;

  /* What the row's integers stand for, and the scale of each group. */
  function quantized(weights, kind, bits) {
    const [size, most] = [GROUPS[kind], largest(bits)];
    const scales = [];
    const back = [];
    for (let begin = 0; begin < COUNT; begin += size) {
      const group = weights.slice(begin, begin + size);
      const top = Math.max(...group.map(Math.abs), kind === "per channel" ? fround(REST) : 0);
      const scale = fround(top / most);
      scales.push(scale);
      for (const w of group) {
        const q = scale > 0 ? Math.max(-most, Math.min(most, roundEven(fround(w / scale)))) : 0;
        back.push({ q, value: fround(q * scale) });
      }
    }
    return { size, scales, back };
  }
  const rms = (values) => Math.sqrt(values.reduce((sum, x) => sum + x * x, 0) / values.length);
  const dot = (values) => values.reduce((sum, x, i) => sum + x * INPUT[i], 0);
  const minus = (text) => text.replace("e-", "e−").replace(/^-/, "−");
  const fixed = (x, digits = 4) => minus(x.toFixed(digits));
  const short = (x) => minus(x.toPrecision(3));

  function build(root) {
    const state = { weights: [...WEIGHTS], chosen: FIRST.chosen, kind: "128", bits: 8 };
    state.weights[FIRST.chosen] = fround(FIRST.value);
    const status = speaker();

    const radios = (name, label, options, checked, pick) => html("div", { class: "fig-buttons", role: "radiogroup", "aria-label": label },
      html("span", {}, label), ...options.map((text) => {
        const radio = html("input", { type: "radio", name, value: text });
        radio.checked = text === checked;
        radio.addEventListener("change", () => { pick(text); update(); });
        return html("label", { class: "fig-radio" }, radio, html("span", {}, text));
      }));
    const groups = radios("qe-group", "group", ["32", "64", "128", "per channel"], state.kind, (text) => { state.kind = text; });
    const bits = radios("qe-bits", "bits", ["8", "4"], String(state.bits), (text) => { state.bits = Number(text); });
    const button = (text, label, act) => {
      const node = html("button", { type: "button", "aria-label": label }, text);
      node.addEventListener("click", () => { act(); update(); });
      return node;
    };
    const calm = button("no outlier", "all weights as they were drawn", () => { state.weights = [...WEIGHTS]; });
    const place = html("output", { class: "fig-place" });
    const row = html("div", { class: "fig-buttons", role: "group", "aria-label": "weights" }, calm, place);
    const map = canvas({ class: "qe-map", tabindex: 0, role: "slider", "aria-valuemin": 0, "aria-valuemax": COUNT - 1,
      "aria-label": "Row of 128 weights: left and right choose one, up and down move it" }, drawMap);
    const facts = html("dl", { class: "fig-facts" });
    const sums = html("dl", { class: "fig-facts" });
    root.append(groups, bits, row, map.node, html("div", { class: "fig-row co-counts" },
      html("div", { class: "fig-side" }, html("p", { class: "fig-label" }, "the chosen weight's group"), facts),
      html("div", { class: "fig-side" }, html("p", { class: "fig-label" }, "all 128 weights"), sums)), status.node);

    const bounded = (x, low, high) => Math.min(high, Math.max(low, x));
    function put(value) {
      state.weights[state.chosen] = fround(bounded(value, -LIMIT, LIMIT));
      update();
    }
    map.node.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: state.chosen - 1, ArrowRight: state.chosen + 1, Home: 0, End: COUNT - 1 }[event.key];
      const by = { ArrowUp: STEP, ArrowDown: -STEP, PageUp: 10 * STEP, PageDown: -10 * STEP }[event.key];
      if (to === undefined && by === undefined) return;
      event.preventDefault();
      if (to !== undefined) {
        state.chosen = bounded(to, 0, COUNT - 1);
        update();
      } else put(state.weights[state.chosen] + by);
    });

    /* The upper part of the drawing is for weights: HIGH pixels around its zero line. */
    const [ROOF, HIGH, GAP, LOW] = [20, 132, 46, 70];
    const middle = ROOF + HIGH / 2;
    const y = (value) => middle - (value / LIMIT) * (HIGH / 2);
    let held = false;
    map.node.addEventListener("pointerdown", (event) => {
      const box = map.node.getBoundingClientRect();
      if (event.clientY - box.top > ROOF + HIGH + 8) return;
      if (!event.target.classList.contains("qe-grip")) {
        state.chosen = bounded(Math.floor(((event.clientX - box.left) / box.width) * COUNT), 0, COUNT - 1);
      }
      held = true;
      map.node.setPointerCapture(event.pointerId);
      drag(event);
    });
    const drag = (event) => put(((middle - (event.clientY - map.node.getBoundingClientRect().top)) / (HIGH / 2)) * LIMIT);
    map.node.addEventListener("pointermove", (event) => { if (held) drag(event); });
    for (const name of ["pointerup", "pointercancel"]) map.node.addEventListener(name, () => { held = false; });

    function figures() {
      const { size, scales, back } = quantized(state.weights, state.kind, state.bits);
      const errors = back.map(({ value }, i) => value - state.weights[i]);
      const group = Math.floor(state.chosen / size);
      const members = back.slice(group * size, (group + 1) * size);
      const expected = Math.sqrt(INPUT.reduce((sum, x, i) => sum + (x * scales[Math.floor(i / size)]) ** 2, 0) / 12);
      return { size, scales, back, errors, group, members, expected, scale: scales[group] };
    }

    function sentence(found) {
      const value = state.weights[state.chosen];
      const times = Math.abs(value) / rms(state.weights.filter((_, i) => i !== state.chosen));
      const zeros = found.members.filter(({ q }) => q === 0).length;
      const group = state.kind === "per channel" ? "The whole row" : `Its group of ${state.kind}`;
      return `Weight ${state.chosen} is ${fixed(value)}, ${times.toFixed(1)} times the rms of the others. ${group} has the scale `
        + `${short(found.scale)}: errors are up to ${short(found.scale / 2)}, and ${zeros} of ${found.size} ${zeros === 1 ? "weight becomes" : "weights become"} 0. `
        + `The rms error of all is ${(100 * rms(found.errors) / rms(WEIGHTS)).toFixed(2)} % of the rms of weights without an outlier.`;
    }

    function update() {
      const found = figures();
      const [exact, whole] = [dot(state.weights), dot(found.back.map(({ value }) => value))];
      const { q, value } = found.back[state.chosen];
      place.textContent = `weight ${state.chosen}: ${fixed(state.weights[state.chosen])}`;
      const list = (node, rows) => node.replaceChildren(
        ...rows.flatMap(([key, text, cls = ""]) => [html("dt", {}, key), html("dd", { class: cls }, text)]));
      list(facts, [
        ["scale, the step", short(found.scale), "strong qe-scale"],
        ["integer of weight " + state.chosen, minus(String(q)), "qe-integer"],
        ["it stands for", fixed(value, 5), "qe-value"],
        ["largest possible error", short(found.scale / 2), "qe-half"],
        ["weights that become 0", `${found.members.filter((one) => one.q === 0).length} of ${found.size}`, "qe-zeros"],
      ]);
      list(sums, [
        ["rms error", short(rms(found.errors)), "qe-rms"],
        ["product with an input", fixed(exact, 6), "qe-exact"],
        ["the same with integers", fixed(whole, 6), "qe-whole"],
        ["error of the product", fixed(whole - exact, 6), "strong qe-error"],
        ["to be expected, ±", fixed(found.expected, 6), "qe-expected"],
      ]);
      const said = sentence(found);
      map.node.setAttribute("aria-valuenow", state.chosen);
      map.node.setAttribute("aria-valuetext", said);
      map.node.dataset.rest = REST;
      map.redraw();
      status.say(said);
    }

    /* Weights on their groups, with the range of each group's integers; below, what rounding adds to each weight. */
    function drawMap(width, node) {
      const { size, scales, back, errors, group } = figures();
      const pitch = width / COUNT;
      const bar = (value, zero, scale, i, cls, more = {}) => {
        const height = Math.abs(value) * scale;
        return svg("rect", { x: i * pitch + pitch * 0.12, width: pitch * 0.76, y: value > 0 ? zero - height : zero, height, class: cls, ...more });
      };
      const floor = ROOF + HIGH;
      const errorMiddle = floor + GAP + LOW / 2;
      const errorRange = LIMIT / largest(state.bits) / 2; // the largest error that any outlier can cause
      scales.forEach((scale, g) => {
        const [x, w] = [g * size * pitch, size * pitch];
        const top = scale * largest(state.bits);
        node.append(svg("rect", { x, y: ROOF, width: w, height: HIGH, class: `qe-group ${g % 2 ? "odd" : ""}` }),
          svg("rect", { x, y: floor + GAP, width: w, height: LOW, class: `qe-group ${g % 2 ? "odd" : ""}` }));
        for (const edge of [top, -top]) node.append(svg("line", { x1: x + 1, x2: x + w - 1, y1: y(edge), y2: y(edge), class: "qe-range" }));
        node.append(label(`s ${short(scale)}`, x + w / 2, floor + 15, g === group ? "small strong" : "small"));
      });
      state.weights.forEach((w, i) => {
        node.append(bar(w, middle, HIGH / 2 / LIMIT, i, `qe-weight ${i === state.chosen ? "chosen" : ""}`,
          { "data-weight": w, "data-back": back[i].value, "data-input": INPUT[i] }));
        node.append(bar(errors[i], errorMiddle, LOW / 2 / errorRange, i, `qe-delta ${i === state.chosen ? "chosen" : ""}`));
      });
      for (const at of [middle, errorMiddle]) node.append(svg("line", { x1: 0, x2: width, y1: at, y2: at, class: "axis" }));
      const at = { cx: (state.chosen + 0.5) * pitch, cy: y(state.weights[state.chosen]) };
      node.append(svg("circle", { ...at, r: 16, class: "hit qe-grip" }), svg("circle", { ...at, r: 6, class: "qe-handle" }));
      node.append(label("weights, and how far each group's integers reach", 0, 12, "small", "start"));
      node.append(label(`rounding errors, from −${short(errorRange)} to ${short(errorRange)}`, 0, floor + GAP - 6, "small", "start"));
      return floor + GAP + LOW + 4;
    }
    update();
  }

  function label(text, x, y, cls, anchor = "middle") {
    return svg("text", { x, y, "text-anchor": anchor, class: cls }, String(text));
  }

  define("quantization-error", build);
})();
