/* A head of 128 elements and its lanes: who owns which elements, where RoPE's partner is, and the tree in which squares are
   added. The mapping is that of kernels/cuda/qk_norm_rope_cache_write.cu. */
(() => {
  const { define, html, svg, canvas, speaker, step: stepped } = window.Figures;
  const HEAD_DIM = 128;
  const HALF = HEAD_DIM / 2;
  const WARP = 32;
  const HEADS = 32; // of Q, K and V in Qwen3-0.6B
  const BYTES = 2; // bf16
  const CHOICES = [32, 16, 8];
  const LEVELS = Math.log2(HALF); // of the tree over the pairs

  const list = (first, count) => (count === 1 ? String(first) : count === 2 ? `${first} and ${first + 1}` : `${first} to ${first + count - 1}`);

  function build(root) {
    const state = { lanes: 32, lane: 5 };
    const status = speaker();
    const pairs = () => HALF / state.lanes;
    const inside = () => Math.log2(pairs()); // levels of the tree within a lane

    const choice = html("div", { class: "fig-buttons", role: "radiogroup", "aria-label": "lanes a head" },
      html("span", {}, "lanes a head"), ...CHOICES.map((lanes) => {
        const radio = html("input", { type: "radio", name: "head-lanes", value: lanes });
        radio.checked = lanes === state.lanes;
        radio.addEventListener("change", () => {
          const first = state.lane * pairs(); // stay with the same element
          state.lanes = lanes;
          state.lane = Math.floor(first / pairs());
          update();
        });
        return html("label", { class: "fig-radio" }, radio, html("span", {}, String(lanes)));
      }));
    const button = (text, label, by) => {
      const node = html("button", { type: "button", "aria-label": label }, text);
      node.addEventListener("click", () => go(state.lane + by));
      return node;
    };
    const back = button("‹ back", "one lane back", -1);
    const next = button("step ›", "one lane on", 1);
    const place = html("output", { class: "fig-place" });
    const steps = html("div", { class: "fig-buttons", role: "group", "aria-label": "lanes" }, back, next, place);
    const map = canvas({ class: "hl-map", tabindex: 0, role: "slider", "aria-label": "Lane of the head", "aria-valuemin": 0 }, draw);
    const loads = html("dl", { class: "fig-facts" });
    const sums = html("dl", { class: "fig-facts" });
    root.append(choice, steps, map.node, html("div", { class: "fig-row co-counts" },
      html("div", { class: "fig-side" }, html("p", { class: "fig-label" }, "loads and stores"), loads),
      html("div", { class: "fig-side" }, html("p", { class: "fig-label" }, "the sum of 128 squares"), sums)), status.node);

    function go(lane) {
      state.lane = Math.min(state.lanes - 1, Math.max(0, lane));
      update();
    }
    map.node.addEventListener("keydown", (event) => {
      const lane = stepped(event.key, state.lane, 0, state.lanes - 1, Math.max(1, state.lanes / 4));
      if (lane === undefined) return;
      event.preventDefault();
      go(lane);
    });
    const point = (event) => { // by place: a finger holds on to what it touched first, and that is drawn anew
      const box = map.node.getBoundingClientRect();
      const lane = Math.floor(((event.clientX - box.left) / box.width) * state.lanes);
      if (lane !== state.lane && lane >= 0 && lane < state.lanes) go(lane);
    };
    map.node.addEventListener("pointerdown", (event) => {
      map.node.setPointerCapture(event.pointerId);
      point(event);
    });
    map.node.addEventListener("pointermove", (event) => event.buttons && point(event));

    function sentence() {
      const first = state.lane * pairs();
      const distances = Array.from({ length: LEVELS - inside() }, (_, i) => 2 ** i).join(", ");
      return `Lane ${state.lane} of ${state.lanes} owns elements ${list(first, pairs())} and, 64 further, ${list(first + HALF, pairs())}: two loads of ${pairs() * BYTES} bytes. `
        + `RoPE turns ${first} with ${first + HALF}${pairs() > 1 ? `, ${first + 1} with ${first + 1 + HALF}${pairs() > 2 ? " and so on" : ""}` : ""}, all its own. `
        + `The sum: ${inside()} level${inside() === 1 ? "" : "s"} of the tree in its registers, then shuffles over distances ${distances}.`;
    }

    function update() {
      const heads = WARP / state.lanes;
      place.textContent = `lane ${state.lane} of ${state.lanes}`;
      back.setAttribute("aria-disabled", state.lane === 0);
      next.setAttribute("aria-disabled", state.lane === state.lanes - 1);
      map.node.setAttribute("aria-valuemax", state.lanes - 1);
      map.node.setAttribute("aria-valuenow", state.lane);
      map.node.setAttribute("aria-valuetext", sentence());
      const facts = (rows) => rows.flatMap(([key, value]) => [html("dt", {}, key), html("dd", { class: "strong" }, String(value))]);
      loads.replaceChildren(...facts([
        ["heads a warp", heads],
        ["bytes a lane, each load", pairs() * BYTES],
        ["bytes a warp, each load", WARP * pairs() * BYTES],
        ["loads for a token's heads", (2 * HEADS) / heads],
      ]));
      sums.replaceChildren(...facts([
        ["squares of a lane", 2 * pairs()],
        ["levels in registers", inside()],
        ["levels by shuffles", LEVELS - inside()],
        ["levels in all", LEVELS],
      ]));
      map.redraw();
      status.say(sentence());
    }

    /* The lower half above the upper one, so that partners stand below each other; then the lanes, then the tree. */
    function draw(width, node) {
      const pitch = width / HALF;
      const wide = pitch * pairs();
      const own = state.lane * wide;
      const box = (x, y, w, h, cls) => svg("rect", { x, y, width: w, height: h, class: cls });
      const gap = wide > 8 ? 1 : 0.5;
      const [lower, upper, lanes, tree] = [20, 66, 106, 152];
      const level = 21;
      node.append(label("a head of K: elements 0 to 63", 0, 13, "start", "small"), label("63", width, 13, "end", "small"),
        label("64 to 127", 0, upper + 34, "start", "small"), label("127", width, upper + 34, "end", "small"));
      for (const y of [lower, upper]) {
        for (let r = 0; r < HALF; r++) {
          const mine = Math.floor(r / pairs()) === state.lane;
          node.append(box(r * pitch + 0.25, y, pitch - 0.5, 20, `cell k ${mine ? "chosen" : ""}`));
        }
      }
      for (let p = 0; p < pairs(); p++) {
        const x = own + (p + 0.5) * pitch;
        node.append(svg("path", { d: `M${x} ${lower + 20}V${upper}`, class: "hl-turn" }));
      }
      const right = own + wide < width - 150;
      node.append(label("RoPE turns these pairs", right ? own + wide + 8 : own - 8, upper - 8, right ? "start" : "end", "small"));

      for (let lane = 0; lane < state.lanes; lane++) {
        const cls = `cell own ${lane === state.lane ? "chosen" : ""}`;
        node.append(box(lane * wide + gap / 2, lanes, wide - gap, 20, cls));
        if (wide > 17) node.append(label(lane, (lane + 0.5) * wide, lanes + 14.5, "middle", cls));
      }
      node.append(label("lanes", 0, lanes + 34, "start", "small"));

      const center = (depth, i) => (i + 0.5) * pitch * 2 ** depth;
      const y = (depth) => tree + depth * level;
      for (let depth = 0; depth < LEVELS; depth++) {
        for (let i = 0; i < HALF / 2 ** depth; i++) {
          const mine = Math.floor((state.lane * pairs()) / 2 ** depth) <= i && i <= Math.floor(((state.lane + 1) * pairs() - 1) / 2 ** depth);
          const tone = depth < inside() ? "hl-register" : "hl-shuffle";
          node.append(svg("path", { d: `M${center(depth, i)} ${y(depth)}L${center(depth + 1, i >> 1)} ${y(depth + 1)}`, class: `${tone} ${mine ? "chosen" : ""}` }));
        }
      }
      node.append(svg("circle", { cx: width / 2, cy: y(LEVELS), r: 4, class: "hl-root" }));
      const border = y(inside());
      node.append(svg("path", { d: `M0 ${border}H${width}`, class: "hl-border" }));
      const narrow = width < 560;
      const words = narrow ? "above the line registers, below it shuffles" : "above the line in a lane's own registers, below it by shuffles between lanes";
      node.append(label("one sum", width / 2 + 10, y(LEVELS) + 4, "start", "small strong"), label(words, 0, y(LEVELS) + 24, "start", "small"));
      return y(LEVELS) + 28;
    }
    update();
  }

  function label(text, x, y, anchor, cls = "") {
    return svg("text", { x, y, "text-anchor": anchor, class: cls }, String(text));
  }

  define("head-lanes", build);
})();
