/* Packed weights and the views of what they make: which rows of the weight make a pack of columns, where it lies in memory,
   and which thread of silu_mul takes it. The sizes are those of Qwen3-0.6B, in bf16. */
(() => {
  const { define, html, svg, canvas, speaker, step: stepped } = window.Figures;
  const HIDDEN = 1024;
  const BYTES = 2; // bf16
  const PACK = 16 / BYTES;
  const THREADS = 64; // of a block of silu_mul.cu, for few rows
  const WARP = 32;
  const HEAD_DIM = 128;
  const ROWS = 4;
  const MODES = {
    mlp: {
      name: "gate and up", what: "gate_up", consumer: "silu_mul",
      parts: [{ name: "gate", size: 3072, tone: "other" }, { name: "up", size: 3072, tone: "w" }],
    },
    qkv: {
      name: "q, k and v", what: "qkv", consumer: "attention",
      parts: [{ name: "q", size: 2048, tone: "q" }, { name: "k", size: 1024, tone: "k" }, { name: "v", size: 1024, tone: "v" }],
    },
  };
  for (const mode of Object.values(MODES)) {
    mode.size = mode.parts.reduce((sum, part) => sum + part.size, 0);
    mode.parts.reduce((start, part) => { part.start = start; return start + part.size; }, 0);
    mode.packs = (mode === MODES.mlp ? mode.parts[0].size : mode.size) / PACK; // of a row: silu_mul counts those of out
  }
  const number = (value) => value.toLocaleString("en");
  const span = (first) => `${number(first)} to ${number(first + PACK - 1)}`;

  /* What pack p touches: its row, and of each part that it reads the first column. */
  function touched({ mode, packed, p }) {
    const row = Math.floor(p / mode.packs);
    const q = p % mode.packs;
    const hit = (part, column) => {
      const [stride, start] = packed ? [mode.size, part.start] : [part.size, 0];
      return { part, column, weight: start + column, byte: (row * stride + start + column) * BYTES };
    };
    if (mode === MODES.mlp) return { row, q, hits: mode.parts.map((part) => hit(part, q * PACK)) };
    const part = mode.parts.find(({ start, size }) => q * PACK < start + size);
    return { row, q, hits: [hit(part, q * PACK - part.start)] };
  }

  function build(root) {
    const state = { mode: MODES.mlp, packed: true, p: MODES.mlp.packs + 37 };
    const status = speaker();
    const last = () => ROWS * state.mode.packs - 1;

    const radios = (name, label, options, pick) => html("div", { class: "fig-buttons", role: "radiogroup", "aria-label": label },
      ...options.map(([text, value, checked]) => {
        const radio = html("input", { type: "radio", name, value: text });
        radio.checked = checked;
        radio.addEventListener("change", () => { pick(value); update(); });
        return html("label", { class: "fig-radio" }, radio, html("span", {}, text));
      }));
    const what = radios("packed-what", "which projections", Object.values(MODES).map((mode) => [mode.name, mode, mode === state.mode]),
      (mode) => { state.mode = mode; state.p = mode.packs + 37; });
    const how = radios("packed-how", "how the weights lie", [["packed: one weight", true, true], ["apart: a weight each", false, false]],
      (packed) => { state.packed = packed; });
    const button = (text, label, target) => {
      const node = html("button", { type: "button", "aria-label": label }, text);
      node.addEventListener("click", () => go(target()));
      return node;
    };
    const back = button("‹ back", "one pack back", () => state.p - 1);
    const next = button("step ›", "one pack on", () => state.p + 1);
    const jump = button("row on ››", "the same pack of the next row", () => state.p + state.mode.packs);
    const place = html("output", { class: "fig-place" });
    const steps = html("div", { class: "fig-buttons", role: "group", "aria-label": "packs" }, back, next, jump, place);

    const map = canvas({ class: "pv-map", tabindex: 0, role: "slider", "aria-label": "Pack of eight columns", "aria-valuemin": 0 }, drawMap);
    const zoom = canvas({ class: "pv-zoom", role: "img" }, drawZoom);
    const zoomLabel = html("p", { class: "fig-label" });
    const facts = html("dl", { class: "fig-facts" });
    const costs = html("dl", { class: "fig-facts" });
    root.append(what, how, steps, map.node, zoomLabel, zoom.node, html("div", { class: "fig-row co-counts" },
      html("div", { class: "fig-side" }, html("p", { class: "fig-label" }, "the views"), facts),
      html("div", { class: "fig-side" }, html("p", { class: "fig-label" }, `the projections of ${ROWS} tokens`), costs)), status.node);

    function go(p) {
      state.p = Math.min(last(), Math.max(0, p));
      update();
    }
    map.node.addEventListener("keydown", (event) => {
      const p = stepped(event.key, state.p, 0, last(), state.mode.packs);
      if (p === undefined) return;
      event.preventDefault();
      go(p);
    });
    const point = (event) => { // by place: a finger holds on to what it touched first, and that is drawn anew
      const hit = document.elementFromPoint(event.clientX, event.clientY)?.closest("[data-row]");
      if (!hit || !map.node.contains(hit)) return;
      const box = hit.getBoundingClientRect();
      const packs = Number(hit.dataset.packs);
      const q = Math.min(packs - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * packs)));
      const p = Number(hit.dataset.row) * state.mode.packs + Number(hit.dataset.first) + q;
      if (p !== state.p) go(p);
    };
    map.node.addEventListener("pointerdown", (event) => {
      map.node.setPointerCapture(event.pointerId);
      point(event);
    });
    map.node.addEventListener("pointermove", point);

    function sentence(now) {
      const { mode, packed, p } = state;
      const made = packed ? `Rows ${now.hits.map(({ weight }) => span(weight)).join(" and ")} of the packed weight make these columns.`
        : now.hits.map(({ part, column }) => `Rows ${span(column)} of the weight of ${part.name} make these columns.`).join(" ");
      if (mode === MODES.mlp) {
        const [gate, up] = now.hits;
        const far = packed ? `and up ${number(up.byte - gate.byte)} bytes behind it` : `and up at byte ${number(up.byte)} of another tensor`;
        return `Thread ${p % THREADS} of block ${Math.floor(p / THREADS)} has pack ${number(p)}: columns ${span(gate.column)} of row ${now.row}. `
          + `It reads gate at byte ${number(gate.byte)} ${far}. ${made}`;
      }
      const [{ part, column, byte }] = now.hits;
      return `Columns ${span(column)} of ${part.name} belong to head ${Math.floor(column / HEAD_DIM)}, and lie at byte ${number(byte)} of ${packed ? "qkv" : part.name}, in row ${now.row}. ${made}`;
    }

    function update() {
      const { mode, packed, p } = state;
      const now = touched(state);
      place.textContent = `row ${now.row}, pack ${number(now.q)} of ${number(mode.packs)}`;
      back.setAttribute("aria-disabled", p === 0);
      next.setAttribute("aria-disabled", p === last());
      jump.setAttribute("aria-disabled", p === last());
      map.node.setAttribute("aria-valuemax", last());
      map.node.setAttribute("aria-valuenow", p);
      map.node.setAttribute("aria-valuetext", sentence(now));
      const list = (rows) => rows.flatMap(([key, value, cls = ""]) => [html("dt", {}, key), html("dd", { class: cls }, value)]);
      facts.replaceChildren(...list(mode.parts.flatMap((part) => [
        [`${part.name}: shape`, `[${ROWS}, ${number(part.size)}]`],
        ["strides, first element", `(${number(packed ? mode.size : part.size)}, 1), ${number(packed ? part.start : 0)}`, "strong"],
      ])));
      costs.replaceChildren(...list([
        ["matrix products launched", String(packed ? 1 : mode.parts.length), "strong"],
        ["times that x is read", String(packed ? 1 : mode.parts.length), "strong"],
        ["bytes of weights", number(mode.size * HIDDEN * BYTES)],
        ["multiply-adds", number(ROWS * mode.size * HIDDEN)],
      ]));
      const head = Math.floor(now.hits[0].column / HEAD_DIM);
      zoomLabel.textContent = mode === MODES.mlp ? `Warp ${Math.floor((p % THREADS) / WARP)} of block ${Math.floor(p / THREADS)}: each lane reads a pack of gate and one of up, and writes one of out`
        : `Head ${head} of ${now.hits[0].part.name}: ${HEAD_DIM / PACK} packs of its ${HEAD_DIM} columns`;
      map.redraw();
      zoom.redraw();
      status.say(sentence(now));
    }

    /* The weights upright, so that row j stands above the column j that it makes; below them what they make, row by row. */
    function drawMap(width, node) {
      const { mode, packed, p } = state;
      const now = touched(state);
      const gutter = 42;
      const gap = packed ? 0 : 14;
      const scale = (width - gutter - gap * (mode.parts.length - 1)) / mode.size;
      const left = (part) => gutter + part.start * scale + mode.parts.indexOf(part) * gap;
      const mark = Math.max(4, PACK * scale);
      const center = ({ part, column }) => left(part) + (column + PACK / 2) * scale;
      const box = (x, y, w, h, cls, more = {}) => svg("rect", { x, y, width: w, height: h, class: cls, ...more });
      const line = 15;
      const [weights, made] = [20, 94];
      const bottom = made + ROWS * line;
      const out = bottom + 46;

      node.append(label("W", gutter - 8, weights + 26, "end", "small"), label(packed ? mode.what : mode.parts.map((part) => part.name).join(", "), 0, made - 6, "start", "small"));
      for (const part of mode.parts) {
        const [x, w] = [left(part), part.size * scale];
        const rows = packed ? `rows ${number(part.start)} …` : `${number(part.size)} rows`;
        node.append(label(width < 560 ? part.name : `${part.name}: ${rows}`, x + w / 2, 13, "middle", "small"), box(x, weights, w, 44, `tile ${part.tone}`));
        for (let row = 0; row < ROWS; row++) {
          const first = mode === MODES.mlp ? 0 : part.start / PACK;
          node.append(box(x, made + row * line + 1, w, line - 2, `tile ${part.tone}`),
            box(x, made + row * line, w, line, "hit", { "data-row": row, "data-first": first, "data-packs": part.size / PACK }));
        }
      }
      for (let row = 0; row < ROWS; row++) node.append(label(`row ${row}`, gutter - 6, made + row * line + 12, "end", row === now.row ? "small strong" : "small"));
      const y = made + now.row * line;
      for (const hit of now.hits) {
        const x = center(hit);
        node.append(svg("path", { d: `M${x} ${weights + 44}L${x} ${y}`, class: "thread" }), box(x - mark / 2, weights - 2, mark, 48, "pv-mark"), box(x - mark / 2, y - 1, mark, line + 2, "pv-mark"));
      }
      if (mode === MODES.qkv) return drawHeads(now, scale, left, bottom, node, box);

      const outScale = Math.min(scale, (width - gutter) / mode.size);
      const middle = gutter + (width - gutter) / 2;
      const outLeft = middle - (mode.parts[0].size * outScale) / 2;
      const x = outLeft + (now.hits[0].column + PACK / 2) * outScale;
      const outY = out + now.row * line;
      node.append(label("out", outLeft - 8, out + (ROWS * line) / 2 + 4, "end", "small"));
      for (let row = 0; row < ROWS; row++) {
        const w = mode.parts[0].size * outScale;
        node.append(box(outLeft, out + row * line + 1, w, line - 2, "tile v"),
          box(outLeft, out + row * line, w, line, "hit", { "data-row": row, "data-first": 0, "data-packs": mode.packs }));
      }
      for (const hit of now.hits) node.append(svg("path", { d: `M${center(hit)} ${y + line}L${x} ${outY}`, class: "thread" }));
      node.append(box(x - mark / 2, outY - 1, mark, line + 2, "pv-mark"));
      const words = `pack ${number(p)}: block ${Math.floor(p / THREADS)}, thread ${p % THREADS}`;
      node.append(label(words, middle, out + ROWS * line + 16, "middle", "small strong"));
      return out + ROWS * line + 20;
    }

    function drawHeads(now, scale, left, bottom, node, box) {
      const [{ part: chosen, column }] = now.hits;
      node.append(label("heads", 36, bottom + 25, "end", "small"));
      for (const part of state.mode.parts) {
        for (let head = 0; head * HEAD_DIM < part.size; head++) {
          const on = part === chosen && head === Math.floor(column / HEAD_DIM);
          const w = HEAD_DIM * scale;
          const x = left(part) + head * w;
          node.append(svg("g", { class: `head ${on ? "chosen" : ""}` }, box(x + 0.5, bottom + 10, w - 1, 22, `tile ${part.tone}`),
            ...(w > 15 ? [label(head, x + w / 2, bottom + 25.5, "middle")] : [])));
        }
      }
      return bottom + 36;
    }

    /* A warp of silu_mul, or the packs of one head. */
    function drawZoom(width, node) {
      const { mode, p } = state;
      const now = touched(state);
      const count = mode === MODES.mlp ? WARP : HEAD_DIM / PACK;
      const first = mode === MODES.mlp ? Math.floor(p / count) * count : Math.floor(now.hits[0].column / HEAD_DIM) * count;
      const chosen = mode === MODES.mlp ? p - first : now.hits[0].column / PACK - first;
      const pitch = width / count;
      for (let lane = 0; lane < count; lane++) {
        const x = lane * pitch;
        const cls = `cell own ${lane === chosen ? "chosen" : ""}`;
        node.append(svg("rect", { x: x + 1, y: 1, width: pitch - 2, height: 22, rx: 3, class: cls }));
        if (pitch > 15) node.append(label(lane, x + pitch / 2, 16.5, "middle", cls));
      }
      const unit = mode === MODES.mlp ? "pack" : "column";
      const by = mode === MODES.mlp ? 1 : PACK;
      node.append(label(`${unit} ${number(first * by)}`, 1, 38, "start", "small"),
        label(number((first + count) * by - 1), width - 1, 38, "end", "small"),
        label(mode === MODES.mlp ? `lane ${chosen}: 3 × 16 bytes` : `16 bytes each`, width / 2, 38, "middle", "small"));
      zoom.node.setAttribute("aria-label", zoomLabel.textContent);
      return 42;
    }
    update();
  }

  function label(text, x, y, anchor, cls = "") {
    return svg("text", { x, y, "text-anchor": anchor, class: cls }, String(text));
  }

  define("packed-views", build);
})();
