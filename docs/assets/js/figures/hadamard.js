/* The Hadamard transform of a head, stage by stage: each element and the one whose index differs in one bit give way to their sum
   and their difference. The data are chapters/ch10_quantized_kv/figures/outliers.json; the arithmetic is that of
   qwen3_ref/kv_quantization.py, with a factor of 1/√2 a stage, so that every picture has the same length. */
(() => {
  const { define, html, svg, canvas, speaker, step: stepped } = window.Figures;
  const COUNT = 128;
  const STAGES = 7;
  const OF_LANE = 8; // neighbours; each of a head's 8 lanes has as many again 64 elements on
  const LANES = 8;
  const GROUP = 32; // of MXFP4
  const E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6];
  const FIRST = 29;

  const rms = (values) => Math.sqrt(values.reduce((sum, x) => sum + x * x, 0) / values.length);
  const largest = (values) => Math.max(...values.map(Math.abs));
  const bits = (x) => [...x.toString(2)].filter((digit) => digit === "1").length;
  const minus = (x, digits = 2) => x.toFixed(digits).replace(/^-(?=.*[1-9])/, "−").replace(/^-/, "");

  function staged(x, stages) {
    let values = [...x];
    for (let stage = 0; stage < stages; stage++) {
      const bit = 1 << stage;
      values = values.map((value, i) => (i & bit ? values[i ^ bit] - value : value + values[i ^ bit]) * Math.SQRT1_2);
    }
    return values;
  }
  /* What MXFP4 gives back: groups of 32, their scale the smallest power of two not below amax / 6. */
  function mxfp4(values) {
    const back = [];
    for (let begin = 0; begin < COUNT; begin += GROUP) {
      const group = values.slice(begin, begin + GROUP);
      const scale = 2 ** Math.max(-127, Math.ceil(Math.log2(largest(group) / 6)));
      for (const value of group) {
        const size = Math.abs(value) / scale;
        let code = 0;
        while (code < 7 && (size > (E2M1[code] + E2M1[code + 1]) / 2 || (size === (E2M1[code] + E2M1[code + 1]) / 2 && code % 2 === 1))) code++;
        back.push(Math.sign(value) * E2M1[code] * scale);
      }
    }
    return back;
  }

  function build(root, data) {
    const alone = (height) => Array.from({ length: COUNT }, (_, i) => (i === FIRST ? height : 0));
    const SIZE = rms(data.key.numbers);
    const INPUTS = {
      "a key of the tiny model": data.key.numbers,
      "one outlier": alone(SIZE * Math.sqrt(COUNT)),
      "all alike": Array.from({ length: COUNT }, () => SIZE),
    };
    const state = { input: Object.keys(INPUTS)[0], stage: 0, chosen: FIRST };
    const status = speaker();

    const choice = html("div", { class: "fig-buttons", role: "radiogroup", "aria-label": "vector" },
      html("span", {}, "vector"), ...Object.keys(INPUTS).map((name) => {
        const radio = html("input", { type: "radio", name: "hadamard", value: name });
        radio.checked = name === state.input;
        radio.addEventListener("change", () => { state.input = name; update(); });
        return html("label", { class: "fig-radio" }, radio, html("span", {}, name));
      }));
    const button = (text, label, by) => {
      const node = html("button", { type: "button", "aria-label": label }, text);
      node.addEventListener("click", () => { state.stage = Math.min(STAGES, Math.max(0, state.stage + by)); update(); });
      return node;
    };
    const back = button("‹ back", "one stage back", -1);
    const next = button("step ›", "one stage on", 1);
    const place = html("output", { class: "fig-place" });
    const row = html("div", { class: "fig-buttons", role: "group", "aria-label": "stages" }, back, next, place);
    const map = canvas({ class: "ha-map", tabindex: 0, role: "slider", "aria-label": "Element of the head", "aria-valuemin": 0, "aria-valuemax": COUNT - 1 }, drawMap);
    const left = html("dl", { class: "fig-facts" });
    const right = html("dl", { class: "fig-facts" });
    root.append(choice, row, map.node, html("div", { class: "fig-row co-counts" },
      html("div", { class: "fig-side" }, html("p", { class: "fig-label" }, "the head"), left),
      html("div", { class: "fig-side" }, html("p", { class: "fig-label" }, "the chosen element"), right)), status.node);

    const go = (element) => { state.chosen = element; update(); };
    map.node.addEventListener("keydown", (event) => {
      const element = stepped(event.key, state.chosen, 0, COUNT - 1, GROUP);
      if (element === undefined) return;
      event.preventDefault();
      go(element);
    });
    const point = (event) => {
      const box = map.node.getBoundingClientRect();
      const element = Math.floor(((event.clientX - box.left) / box.width) * COUNT);
      if (element >= 0 && element < COUNT && element !== state.chosen) go(element);
    };
    map.node.addEventListener("pointerdown", (event) => { map.node.setPointerCapture(event.pointerId); point(event); });
    map.node.addEventListener("pointermove", (event) => event.buttons && point(event));

    const values = () => staged(INPUTS[state.input], state.stage);
    /* Who takes part in the next stage with the chosen element, or took part in the last one. */
    const bit = () => 1 << Math.min(state.stage, STAGES - 1);
    const apart = () => (bit() / OF_LANE) % LANES;
    const where = () => (apart() < 1 ? "in the lane's registers" : `by a shuffle over ${apart()} ${apart() === 1 ? "lane" : "lanes"}`);

    function sentence(now) {
      const height = largest(now) / rms(now);
      const done = state.stage === 0 ? "Before the transform" : state.stage === STAGES ? "After all seven stages" : `After stage ${state.stage}`;
      const mate = state.chosen ^ bit();
      const then = state.stage === STAGES ? `Element ${state.chosen} is a sum of all 128, each with a sign of its own.`
        : `Next, elements ${Math.min(state.chosen, mate)} and ${Math.max(state.chosen, mate)} give way to their sum and their difference, ${where()}.`;
      return `${done} the largest of 128 is ${height.toFixed(2)} times the root mean square, which stays ${minus(rms(now))}. ${then}`;
    }

    function update() {
      const now = values();
      const error = rms(mxfp4(now).map((value, i) => value - now[i])) / rms(now);
      place.textContent = `stage ${state.stage} of ${STAGES}`;
      back.setAttribute("aria-disabled", state.stage === 0);
      next.setAttribute("aria-disabled", state.stage === STAGES);
      const group = Math.floor(state.chosen / GROUP);
      const list = (node, rows) => node.replaceChildren(...rows.flatMap(([key, text, cls]) => [html("dt", {}, key), html("dd", { class: cls }, text)]));
      list(left, [
        ["root mean square", minus(rms(now), 3), "ha-rms"],
        ["largest", minus(largest(now), 3), "ha-largest"],
        ["largest ÷ rms", (largest(now) / rms(now)).toFixed(2), "strong ha-peak"],
        ["rms error as MXFP4", `${(100 * error).toFixed(1)} %`, "ha-error"],
      ]);
      list(right, [
        ["element", `${state.chosen} = ${state.chosen.toString(2).padStart(STAGES, "0")}`, "ha-element"],
        ["its value", minus(now[state.chosen], 3), "strong ha-value"],
        ["is made of", `${2 ** state.stage} ${state.stage ? "elements" : "element"}`, "ha-parts"],
        ["largest of its group of 32", minus(largest(now.slice(group * GROUP, (group + 1) * GROUP)), 3), "ha-group"],
      ]);
      const said = sentence(now);
      map.node.setAttribute("aria-valuenow", state.chosen);
      map.node.setAttribute("aria-valuetext", said);
      map.redraw();
      status.say(said);
    }

    const [ROOF, HIGH, GAP, PITCH] = [20, 130, 30, 13];
    function drawMap(width, node) {
      const now = values();
      const wide = width / COUNT;
      const most = largest(INPUTS[state.input].concat(staged(INPUTS[state.input], STAGES)));
      const middle = ROOF + HIGH / 2;
      for (let lane = 0; lane < COUNT / OF_LANE; lane += 2) {
        node.append(svg("rect", { x: lane * OF_LANE * wide, y: ROOF, width: OF_LANE * wide, height: HIGH + GAP + PITCH * (STAGES + 1), class: "ha-lane" }));
      }
      node.append(svg("line", { x1: 0, x2: width, y1: middle, y2: middle, class: "axis" }));
      const mate = state.chosen ^ bit();
      now.forEach((value, i) => {
        const height = (Math.abs(value) / most) * (HIGH / 2);
        const tone = i === state.chosen ? "chosen" : i === mate ? "mate" : "";
        node.append(svg("rect", { x: i * wide + wide * 0.12, width: wide * 0.76, y: value > 0 ? middle - height : middle, height, class: `ha-bar ${tone}`, "data-value": value }));
      });
      const top = ROOF + HIGH + GAP;
      for (let stage = 0; stage <= STAGES; stage++) {
        for (let i = 0; i < COUNT; i++) {
          // What of stage `stage` the chosen element of the present stage is made of, and with which sign.
          const part = stage <= state.stage && ((i ^ state.chosen) & ~((1 << state.stage) - (1 << stage))) === 0;
          const sign = bits(i & state.chosen & ((1 << state.stage) - (1 << stage))) % 2;
          if (part) node.append(svg("rect", { x: i * wide + 0.3, y: top + stage * PITCH, width: Math.max(wide - 0.6, 1), height: PITCH - 3, class: `ha-part ${sign ? "minus" : "plus"}`, "data-stage": stage, "data-element": i, "data-sign": sign }));
        }
      }
      node.append(label("the head's 128 elements, eight neighbours a lane", 0, 12, "start"),
        label("stage by stage, of what the chosen one is made: green added, red subtracted", 0, top - 8, "start", width));
      return top + PITCH * (STAGES + 1) + 2;
    }
    update();
  }

  function label(text, x, y, anchor, width = Infinity) {
    const short = width < 420 ? text.replace("stage by stage, of what the chosen one is made: ", "made of: ") : text;
    return svg("text", { x, y, "text-anchor": anchor, class: "small" }, short);
  }

  define("hadamard", build);
})();
