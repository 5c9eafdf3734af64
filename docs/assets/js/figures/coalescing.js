/* What one warp asks of the memory, request by request: which 32-byte sectors of a matrix of rows its 32 lanes touch.
   Nothing here is made up: the requests are a trace of the chapter's kernels in the simulator (figures/coalescing.json). */
(() => {
  const { define, html, svg, canvas, speaker, step: stepped } = window.Figures;
  const LANES = 32;
  const number = (value) => value.toLocaleString("en");
  const percent = (part, whole) => `${((100 * part) / whole).toLocaleString("en", { maximumFractionDigits: 1 })} %`;
  const plural = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

  /* What the figure says of each step that it knows, by the step's first letters. */
  const WORDS = {
    v1: "a thread a row",
    v2: "neighbouring lanes, 2 bytes each",
    v3: "neighbouring lanes, 2 bytes each",
    v4: "neighbouring lanes, 16 bytes each",
  };

  /* Steps whose warp asks for the same, merged: one choice each. */
  function kinds(data) {
    const found = [];
    for (const step of data.steps) {
      const name = step.step.split("_")[0];
      const same = found.at(-1);
      if (same && JSON.stringify([same.warp, same.totals]) === JSON.stringify([step.warp, step.totals])) same.names.push(name);
      else found.push({ ...step, names: [name], words: WORDS[name] ?? step.step });
    }
    return found.map((kind) => ({ ...kind, count: kind.warp.reduce((sum, run) => sum + run.repeats, 0) }));
  }

  /* The i-th request of the warp: where each lane reads, in bytes from the start of x, and how often the row was read before. */
  function request(kind, i) {
    let rest = i;
    for (const [pass, run] of kind.warp.entries()) {
      if (rest < run.repeats) {
        const start = run.first + rest * run.per_repeat;
        return { pass, bytes: run.bytes, at: Array.from({ length: run.lanes }, (_, lane) => start + lane * run.per_lane) };
      }
      rest -= run.repeats;
    }
    throw new Error(`a warp of ${kind.step} has ${kind.count} requests, and none number ${i}`);
  }

  function build(root, data) {
    const SECTOR = data.sector_bytes;
    const ROW = data.hidden * data.element_bytes;
    const perRow = ROW / SECTOR;
    const all = kinds(data);
    const state = { kind: all[0], i: 0, lane: 3 };
    const status = speaker();
    const sectorsOf = ({ at, bytes }) => {
      const touched = new Set();
      for (const start of at) for (let s = Math.floor(start / SECTOR); s * SECTOR < start + bytes; s++) touched.add(s);
      return touched;
    };

    const choice = html("div", { class: "fig-buttons", role: "radiogroup", "aria-label": "how the rows are read" },
      ...all.map((kind) => {
        const radio = html("input", { type: "radio", name: "kind-of-access", value: kind.names[0] });
        radio.checked = kind === state.kind;
        radio.addEventListener("change", () => {
          state.kind = kind;
          state.i = 0;
          update();
        });
        return html("label", { class: "fig-radio" }, radio, html("span", {}, `${kind.names.join(", ")}: ${kind.words}`));
      }));
    const button = (text, label, target) => {
      const node = html("button", { type: "button", "aria-label": label }, text);
      node.addEventListener("click", () => go(target()));
      return node;
    };
    const back = button("‹ back", "one request back", () => state.i - 1);
    const next = button("step ›", "one request on", () => state.i + 1);
    const jump = button("16 on ››", "sixteen requests on", () => state.i + 16);
    const place = html("output", { class: "fig-place" });
    const steps = html("div", { class: "fig-buttons", role: "group", "aria-label": "requests" }, back, next, jump, place);
    const range = html("input", { type: "range", min: 0, step: 1, "aria-label": "request of the warp" });
    range.addEventListener("input", () => go(Number(range.value)));

    const map = canvas({ class: "co-map", tabindex: 0, role: "slider", "aria-label": "Lane", "aria-valuemin": 0, "aria-valuemax": LANES - 1 }, drawMap);
    const zoom = canvas({ class: "co-zoom", role: "img" }, drawSector);
    const zoomLabel = html("p", { class: "fig-label" });
    const facts = html("dl", { class: "fig-facts" });
    const totals = html("dl", { class: "fig-facts" });
    const totalsLabel = html("p", { class: "fig-label" });
    root.append(choice, steps, html("div", { class: "fig-slider" }, range), map.node, zoomLabel, zoom.node,
      html("div", { class: "fig-row co-counts" }, html("div", { class: "fig-side" }, html("p", { class: "fig-label" }, "this request of the warp"), facts),
        html("div", { class: "fig-side" }, totalsLabel, totals)), status.node);

    function go(i) {
      state.i = Math.min(state.kind.count - 1, Math.max(0, i));
      update();
    }
    map.node.addEventListener("keydown", (event) => {
      const lane = stepped(event.key, state.lane, 0, LANES - 1, 8);
      if (lane === undefined) return;
      event.preventDefault();
      state.lane = lane;
      update();
    });
    const point = (event) => { // by place: a finger holds on to what it touched first, and that is drawn anew
      const hit = document.elementFromPoint(event.clientX, event.clientY)?.closest("[data-lane]");
      if (!hit || !map.node.contains(hit) || Number(hit.dataset.lane) === state.lane) return;
      state.lane = Number(hit.dataset.lane);
      update();
    };
    map.node.addEventListener("pointerdown", (event) => {
      map.node.setPointerCapture(event.pointerId);
      point(event);
    });
    map.node.addEventListener("pointermove", point);

    const askedBefore = (i) => {
      const found = new Set();
      for (let j = 0; j < i; j++) for (const sector of sectorsOf(request(state.kind, j))) found.add(sector);
      return found;
    };
    function sentence(now, touched) {
      const { kind, i, lane } = state;
      const sectors = touched.size;
      const before = askedBefore(i);
      const row = Math.floor(now.at[lane] / ROW);
      const first = (now.at[lane] % ROW) / data.element_bytes;
      const last = first + now.bytes / data.element_bytes - 1;
      const what = last === first ? `element ${number(first)}` : `elements ${number(first)} to ${number(last)}`;
      const again = [...touched].every((sector) => before.has(sector)) ? " All were asked for before: where no cache has kept them, they move again." : "";
      return `Request ${number(i + 1)} of ${number(kind.count)}: lane ${lane} reads ${what} of row ${row}. `
        + `The warp touches ${plural(sectors, "sector")}, ${number(sectors * SECTOR)} bytes, and uses ${number(now.at.length * now.bytes)} of them.${again}`;
    }

    function update() {
      const { kind, i, lane } = state;
      const now = request(kind, i);
      const touched = sectorsOf(now);
      const sectors = touched.size;
      const used = now.at.length * now.bytes;
      place.textContent = `request ${number(i + 1)} of ${number(kind.count)}`;
      back.setAttribute("aria-disabled", i === 0);
      next.setAttribute("aria-disabled", i === kind.count - 1);
      jump.setAttribute("aria-disabled", i === kind.count - 1);
      range.max = kind.count - 1;
      range.value = i;
      range.disabled = kind.count === 1;
      range.setAttribute("aria-valuetext", place.textContent);
      map.node.setAttribute("aria-valuenow", lane);
      map.node.setAttribute("aria-valuetext", sentence(now, touched));
      const list = (rows) => rows.flatMap(([key, value, cls = ""]) => [html("dt", {}, key), html("dd", { class: cls }, value)]);
      facts.replaceChildren(...list([
        ["bytes that the lanes want", number(used)],
        [`sectors of ${SECTOR} bytes`, number(sectors)],
        ["bytes moved", number(sectors * SECTOR)],
        ["of them wanted", percent(used, sectors * SECTOR), "strong"],
      ]));
      totalsLabel.textContent = `all reads of x, ${data.rows} rows, ${kind.names.join(" and ")}`;
      totals.replaceChildren(...list([
        ["requests of warps", number(kind.totals.requests)],
        ["sectors asked for", number(kind.totals.sectors)],
        ["x as the lanes want it", `${number(kind.totals.bytes / (data.rows * ROW))} ×`],
        ["x as the sectors bring it", `${number((kind.totals.sectors * SECTOR) / (data.rows * ROW))} ×`, "strong"],
      ]));
      zoomLabel.textContent = `One sector, the one of lane ${lane}: ${SECTOR / data.element_bytes} numbers, and the lanes that want them`;
      map.redraw();
      zoom.redraw();
      status.say(sentence(now, touched));
    }

    /* All of x: a line for each row, a cell for each sector; and the lanes above it. */
    function drawMap(width, node) {
      const { kind, i, lane: chosen } = state;
      const now = request(kind, i);
      const gutter = 42;
      const cell = (width - gutter) / perRow;
      const line = width < 560 ? 6.5 : 8;
      const top = 36;
      const bottom = top + data.rows * line;
      const corner = (sector) => [gutter + (sector % perRow) * cell, top + Math.floor(sector / perRow) * line];
      const shape = (sectors, inset) => [...sectors].map((sector) => {
        const [x, y] = corner(sector);
        return `M${(x + inset).toFixed(1)} ${(y + inset).toFixed(1)}h${(cell - 2 * inset).toFixed(1)}v${(line - 2 * inset).toFixed(1)}h${(2 * inset - cell).toFixed(1)}z`;
      }).join("");

      const pitch = (width - gutter) / LANES;
      node.append(label("lanes", 0, 16, "start", "small"), label("byte 0", gutter, bottom + 15, "start", "small"),
        label(`x: ${data.rows} rows of ${number(ROW)} bytes`, (gutter + width) / 2, bottom + 15, "middle", "small"), label(number(ROW - 1), width, bottom + 15, "end", "small"));
      for (let lane = 0; lane < LANES; lane++) {
        const x = gutter + lane * pitch;
        node.append(svg("rect", { x: x + 0.75, y: 3, width: pitch - 1.5, height: 18, rx: 2, class: `cell lane ${lane === chosen ? "chosen" : ""}` }));
        if (pitch > 16) node.append(label(lane, x + pitch / 2, 16, "middle", `cell ${lane === chosen ? "chosen" : ""}`));
      }
      const before = askedBefore(i);
      const lit = sectorsOf(now);
      for (let row = 0; row < data.rows; row++) {
        node.append(svg("rect", { x: gutter, y: top + row * line + 0.6, width: width - gutter, height: line - 1.2, class: "track" }));
        if (row % 8 === 0 || row === data.rows - 1) node.append(label(`row ${row}`, gutter - 6, top + row * line + line / 2 + 4, "end", "small"));
      }
      if (Math.max(...now.at) < ROW) node.append(label("these rows belong to other blocks", (gutter + width) / 2, (top + bottom) / 2 + 4, "middle", "small"));
      const mine = new Set(sectorsOf({ at: [now.at[chosen]], bytes: now.bytes }));
      node.append(svg("path", { d: shape(before, 0.5), class: "sector before" }), svg("path", { d: shape(lit, 0.5), class: "sector lit" }),
        svg("path", { d: shape(mine, -0.6), class: "sector mine" }));
      const [mx, my] = corner(Math.min(...mine));
      node.append(svg("path", { d: `M${gutter + (chosen + 0.5) * pitch} 21L${mx + cell / 2} ${my}`, class: "thread" }));
      for (let lane = 0; lane < LANES; lane++) {
        node.append(svg("rect", { x: gutter + lane * pitch, y: 0, width: pitch, height: 24, class: "hit", "data-lane": lane }));
      }
      return bottom + 19;
    }

    /* The sector of the chosen lane, number by number. */
    function drawSector(width, node) {
      const now = request(state.kind, state.i);
      const each = SECTOR / data.element_bytes;
      const sector = Math.floor(now.at[state.lane] / SECTOR);
      const owner = new Map();
      now.at.forEach((start, lane) => {
        for (let byte = start; byte < start + now.bytes; byte += data.element_bytes) {
          if (Math.floor(byte / SECTOR) === sector) owner.set((byte % SECTOR) / data.element_bytes, lane);
        }
      });
      const pitch = width / each;
      const first = ((sector * SECTOR) % ROW) / data.element_bytes;
      for (let slot = 0; slot < each; slot++) {
        const x = slot * pitch;
        const lane = owner.get(slot);
        const cls = lane === undefined ? "slot idle" : `cell own ${lane === state.lane ? "chosen" : "mate"}`;
        node.append(svg("rect", { x: x + 1, y: 1, width: pitch - 2, height: 22, rx: 3, class: cls }));
        if (lane !== undefined) node.append(label(lane, x + pitch / 2, 16.5, "middle", cls));
      }
      node.append(label(`element ${number(first)}`, 1, 38, "start", "small"), label(number(first + each - 1), width - 1, 38, "end", "small"),
        label(`row ${Math.floor((sector * SECTOR) / ROW)}`, width / 2, 38, "middle", "small"));
      zoom.node.setAttribute("aria-label", `${owner.size} of ${each} numbers of this sector are wanted, by lanes ${[...new Set(owner.values())].join(", ")}`);
      return 42;
    }
    update();
  }

  function label(text, x, y, anchor, cls = "") {
    return svg("text", { x, y, "text-anchor": anchor, class: cls }, String(text));
  }

  define("coalescing", build);
})();
