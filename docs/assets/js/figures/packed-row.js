/* A row of the int8 head and the warp that reads it: which bytes a lane loads, whose scale they need, and how one byte becomes a
   float without a conversion. The mappings are those of chapters/ch08_w8a16_head/steps. */
(() => {
  const { define, html, svg, canvas, speaker, step: stepped } = window.Figures;
  const COLUMNS = 1024; // of Qwen3-0.6B, one byte each
  const GROUP = 128;
  const WARP = 32;
  const WORD = 4; // bytes
  const WIDTHS = [4, 16]; // bytes a lane loads at once: v1 and v2; v3 and the engine
  const MAGIC = 0x4b000000; // the bits of 2^23 as a float
  const BIAS = 8388736; // 2^23 + 128
  const WORDS = GROUP / WORD; // of a line of the drawing, which is a group
  const FIRST = { lane: 5, byte: -37 };

  const bits = new Uint32Array(1);
  const float = new Float32Array(bits.buffer);
  const asFloat = (pattern) => { bits[0] = pattern; return float[0]; };
  const minus = (x) => String(x).replace("-", "−");
  const binary = (x, digits) => x.toString(2).padStart(digits, "0");

  /* What becomes of a byte, each line as the kernel has it. */
  function converted(q) {
    const stored = q & 0xff;
    const flipped = stored ^ 0x80;
    const pattern = (MAGIC | flipped) >>> 0;
    const large = asFloat(pattern);
    return { stored, flipped, pattern, large, value: Math.fround(large - BIAS) };
  }

  function build(root) {
    const state = { width: 4, lane: FIRST.lane, step: 0, byte: FIRST.byte };
    const status = speaker();
    const steps = () => COLUMNS / (WARP * state.width);
    const columns = () => (state.step * WARP + state.lane) * state.width;

    const choice = html("div", { class: "fig-buttons", role: "radiogroup", "aria-label": "bytes a lane" },
      html("span", {}, "bytes a lane"), ...WIDTHS.map((width) => {
        const radio = html("input", { type: "radio", name: "packed-row", value: width });
        radio.checked = width === state.width;
        radio.addEventListener("change", () => { state.width = width; state.step = 0; update(); });
        return html("label", { class: "fig-radio" }, radio, html("span", {}, String(width)));
      }));
    const button = (text, label, by) => {
      const node = html("button", { type: "button", "aria-label": label }, text);
      node.addEventListener("click", () => { state.step = Math.min(steps() - 1, Math.max(0, state.step + by)); update(); });
      return node;
    };
    const back = button("‹ back", "one load back", -1);
    const next = button("step ›", "one load on", 1);
    const place = html("output", { class: "fig-place" });
    const row = html("div", { class: "fig-buttons", role: "group", "aria-label": "loads" }, back, next, place);
    const map = canvas({ class: "pr-map", tabindex: 0, role: "slider", "aria-label": "Lane of the warp", "aria-valuemin": 0, "aria-valuemax": WARP - 1 }, drawRow);
    const loads = html("dl", { class: "fig-facts" });
    const input = html("input", { type: "range", min: -128, max: 127, step: 1, "aria-label": "the byte" });
    const output = html("output");
    const byte = html("label", { class: "fig-slider" }, html("span", {}, "one of its bytes"), output, input);
    const pattern = canvas({ class: "pr-bits", role: "img" }, drawBits);
    const numbers = html("dl", { class: "fig-facts" });
    root.append(choice, row, map.node, loads, html("p", { class: "fig-label" }, "from a byte to a float"), byte, pattern.node, numbers, status.node);

    input.addEventListener("input", () => { state.byte = Number(input.value); update(); });
    const go = (lane) => { state.lane = lane; update(); };
    map.node.addEventListener("keydown", (event) => {
      const lane = stepped(event.key, state.lane, 0, WARP - 1, 8);
      if (lane === undefined) return;
      event.preventDefault();
      go(lane);
    });
    const point = (event) => { // the lane whose bytes these are, whatever the step
      const box = map.node.getBoundingClientRect();
      const word = Math.floor(((event.clientX - box.left) / lineWidth(box.width)) * WORDS);
      const line = Math.floor((event.clientY - box.top - ROOF) / PITCH);
      if (word < 0 || word >= WORDS || line < 0 || line >= COLUMNS / GROUP) return;
      const lane = Math.floor(((line * GROUP + word * WORD) % (WARP * state.width)) / state.width);
      if (lane !== state.lane) go(lane);
    };
    map.node.addEventListener("pointerdown", (event) => { map.node.setPointerCapture(event.pointerId); point(event); });
    map.node.addEventListener("pointermove", (event) => event.buttons && point(event));

    function sentence() {
      const first = columns();
      const group = Math.floor(first / GROUP);
      return `Load ${state.step + 1} of ${steps()}: lane ${state.lane} has columns ${first} to ${first + state.width - 1}, of group ${group}; `
        + `the warp ${WARP * state.width} bytes side by side. ${state.width} products are summed, then multiplied by scale ${group}.`;
    }
    function conversion() {
      const { stored, flipped, large } = converted(state.byte);
      return `${minus(state.byte)} is stored as ${binary(stored, 8)}. Its sign bit flipped, it is ${flipped}. Behind the upper bytes of 2 to the 23 it is the float ${large.toLocaleString("en")}; less 8,388,736 that is ${minus(state.byte)}.`;
    }

    function update() {
      const { flipped, large, value } = converted(state.byte);
      place.textContent = `load ${state.step + 1} of ${steps()}`;
      back.setAttribute("aria-disabled", state.step === 0);
      next.setAttribute("aria-disabled", state.step === steps() - 1);
      input.value = state.byte;
      output.textContent = minus(state.byte);
      input.setAttribute("aria-valuetext", conversion());
      map.node.setAttribute("aria-valuenow", state.lane);
      map.node.setAttribute("aria-valuetext", sentence());
      pattern.node.setAttribute("aria-label", conversion());
      const list = (node, rows) => node.replaceChildren(
        ...rows.flatMap(([key, text, cls]) => [html("dt", {}, key), html("dd", { class: cls }, text)]));
      list(loads, [
        ["bytes of a warp, each load", String(WARP * state.width), "pr-warp"],
        ["loads of a lane, each row", String(steps()), "pr-loads"],
        ["products for each scale", String(state.width), "strong pr-products"],
      ]);
      list(numbers, [
        ["sign bit flipped: u = q + 128", String(flipped), "pr-flipped"],
        ["as a float: 2²³ + u", large.toLocaleString("en"), "pr-large"],
        ["less 2²³ + 128", minus(value), "strong pr-value"],
      ]);
      map.redraw();
      pattern.redraw();
      status.say(sentence());
    }

    const [ROOF, PITCH, HIGH] = [22, 19, 15];
    const lineWidth = (width) => width - 30; // the rest is for scales
    /* A line for each group, a cell for each word of four bytes. */
    function drawRow(width, node) {
      const wide = lineWidth(width) / WORDS;
      node.append(label(`a row: ${COLUMNS.toLocaleString("en")} bytes, ${GROUP} a line`, 0, 13, "start", "small"), label("scale", width, 13, "end", "small"));
      for (let word = 0; word < COLUMNS / WORD; word++) {
        const line = Math.floor(word / WORDS);
        const at = word * WORD;
        const lane = Math.floor((at % (WARP * state.width)) / state.width);
        const now = Math.floor(at / (WARP * state.width)) === state.step;
        const tone = lane === state.lane ? (now ? "chosen" : "mate") : now ? "now" : "";
        node.append(svg("rect", { x: (word % WORDS) * wide + 0.5, y: ROOF + line * PITCH, width: wide - 1, height: HIGH, class: `cell w ${tone}`, "data-column": at }));
      }
      const group = Math.floor(columns() / GROUP);
      for (let line = 0; line < COLUMNS / GROUP; line++) {
        node.append(label(`s${line}`, width, ROOF + line * PITCH + 12, "end", line === group ? "small strong pr-scale" : "small"));
      }
      return ROOF + (COLUMNS / GROUP) * PITCH + 4;
    }

    /* The byte, the byte with its sign bit flipped, and the float, bit under bit. */
    function drawBits(width, node) {
      const wide = width / 32;
      const { stored, flipped, pattern: whole } = converted(state.byte);
      const bit = (text, i, y, cls) => node.append(
        svg("rect", { x: i * wide + 0.5, y, width: wide - 1, height: 18, class: `cell ${cls}` }),
        label(text, (i + 0.5) * wide, y + 13.5, "middle", "cell"));
      const line = (digits, y, cls) => [...digits].forEach((text, i) => bit(text, 32 - digits.length + i, y, cls(32 - digits.length + i)));
      line(binary(stored, 8), 4, () => "byte");
      line(binary(flipped, 8), 30, () => "byte");
      line(binary(whole, 32), 74, (i) => (i >= 24 ? "byte" : i > 0 && i < 9 ? "exponent" : "w"));
      node.append(label("the byte", 23 * wide, 17, "end", "small"), label("⊕ 10000000", 23 * wide, 43, "end", "small"),
        label("0x4B0000, and the byte: a float", 0, 68, "start", "small"),
        label("sign, exponent 150: steps of 1", 0, 108, "start", "small"), label("u", 28 * wide, 108, "middle", "small"));
      return 112;
    }
    update();
  }

  function label(text, x, y, anchor, cls = "") {
    return svg("text", { x, y, "text-anchor": anchor, class: cls }, String(text));
  }

  define("packed-row", build);
})();
