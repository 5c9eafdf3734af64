/* Grouped-query attention: which KV head a query head reads, and what the KV cache of Qwen3-0.6B costs in bytes. */
(() => {
  const { define, html, svg, canvas, slider, speaker, step } = window.Figures;
  const HEADS = 16;
  const HEAD_DIM = 128;
  const LAYERS = 28;
  const BYTES = 2; // bf16
  const WEIGHTS = 596049920 * BYTES;
  const LONGEST = 32768;
  const KINDS = [
    { id: "mha", name: "MHA", long: "multi-head attention", kv: 16 },
    { id: "gqa", name: "GQA", long: "grouped-query attention, as in Qwen3-0.6B", kv: 8 },
    { id: "mqa", name: "MQA", long: "multi-query attention", kv: 1 },
  ];
  const perLayer = (kind, tokens) => 2 * kind.kv * HEAD_DIM * BYTES * tokens; // K and V
  const inAll = (kind, tokens) => LAYERS * perLayer(kind, tokens);

  function size(bytes) {
    const unit = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]].find(([, one]) => bytes >= one) ?? ["B", 1];
    const value = bytes / unit[1];
    const places = value >= 100 || Number.isInteger(value) ? 0 : value >= 10 ? 1 : 2;
    return `${value.toLocaleString("en", { maximumFractionDigits: places, minimumFractionDigits: places })} ${unit[0]}`;
  }

  function build(root) {
    const state = { kind: KINDS[1], head: 5, tokens: 8192 };
    const status = speaker();
    const readBy = () => Math.floor((state.head * state.kind.kv) / HEADS);
    const groupName = (h) => (state.kind.kv === HEADS ? `${h}` : state.kind.kv === 1 ? "0" : `⌊${h}/${HEADS / state.kind.kv}⌋ = ${readBy()}`);

    const choice = html("div", { class: "fig-buttons", role: "radiogroup", "aria-label": "kind of attention" },
      ...KINDS.map((kind) => {
        const radio = html("input", { type: "radio", name: "kind-of-attention", value: kind.id });
        radio.addEventListener("change", () => {
          state.kind = kind;
          update();
        });
        return html("label", { class: "fig-radio", title: kind.long }, radio, html("span", {}, `${kind.name}: ${kind.kv} KV head${kind.kv > 1 ? "s" : ""}`));
      }));
    const radios = [...choice.querySelectorAll("input")];

    const map = canvas({ class: "gqa-heads", tabindex: 0, role: "slider", "aria-label": "Query head", "aria-valuemin": 0, "aria-valuemax": HEADS - 1 }, drawMap);
    const bars = canvas({ class: "gqa-bars", role: "img" }, drawBars);
    const context = slider({
      label: "tokens in the context", tone: "ink", min: 1, max: LONGEST, page: 1024,
      say: (tokens) => `${tokens} token${tokens > 1 ? "s" : ""}`, changed: (tokens) => { state.tokens = tokens; update(); },
    });
    root.append(choice, map.node, context.node, bars.node, status.node);

    map.node.addEventListener("keydown", (event) => {
      const next = step(event.key, state.head, 0, HEADS - 1, HEADS / state.kind.kv);
      if (next === undefined) return;
      event.preventDefault();
      state.head = next;
      update();
    });
    const point = (event) => {
      const hit = event.target.closest("[data-head]");
      if (!hit || Number(hit.dataset.head) === state.head) return;
      state.head = Number(hit.dataset.head);
      update();
    };
    map.node.addEventListener("pointermove", point);
    map.node.addEventListener("pointerdown", point);

    function update() {
      const { kind, head, tokens } = state;
      for (const radio of radios) radio.checked = radio.value === kind.id;
      const mates = Array.from({ length: HEADS }, (_, h) => h).filter((h) => h !== head && Math.floor((h * kind.kv) / HEADS) === readBy());
      const company = !mates.length ? "alone" : mates.length === 1 ? `together with query head ${mates[0]}` : "together with all other query heads";
      map.node.setAttribute("aria-valuenow", head);
      map.node.setAttribute("aria-valuetext", `query head ${head} reads KV head ${readBy()}`);
      bars.node.setAttribute("aria-label", KINDS.map((k) => `${k.name} ${size(inAll(k, tokens))}`).join(", "));
      context.set(tokens);
      map.redraw();
      bars.redraw();
      const share = inAll(kind, tokens) / WEIGHTS;
      status.say(`Query head ${head} reads KV head ${groupName(head)}, ${company}. ${kind.name} keeps ${size(inAll(kind, 1))} a token; `
        + `${tokens.toLocaleString("en")} token${tokens > 1 ? "s take" : " takes"} ${size(perLayer(kind, tokens))} in each layer, `
        + `${size(inAll(kind, tokens))} in all ${LAYERS}: ${share < 0.005 ? "under 0.01" : share.toFixed(2)} of the bytes of the weights.`);
    }

    function drawMap(width, node) {
      const { kind, head } = state;
      const cell = width / HEADS;
      const box = Math.min(cell - 3, 34);
      const [top, link, low] = [24, 24 + box, 24 + box + 62];
      const center = (index, count) => ((index + 0.5) * width) / count;
      node.append(label("query heads", 1, 13, "start"));
      node.append(label(`KV head${kind.kv > 1 ? "s" : ""}`, 1, low + box + 35, "start")); // below its row: above it, the links would cross it
      const mine = readBy();
      const wide = Math.min(width / kind.kv - 3, 2 * box + 6);
      const order = Array.from({ length: HEADS }, (_, h) => h).sort((a, b) => (a === head) - (b === head)); // chosen link on top
      for (const h of order) {
        const target = Math.floor((h * kind.kv) / HEADS);
        const cls = h === head ? "link chosen" : target === mine ? "link mate" : "link";
        const [a, b] = [center(h, HEADS), center(target, kind.kv)];
        node.append(svg("path", { d: `M${a} ${link + 1}C${a} ${link + 32} ${b} ${low - 32} ${b} ${low - 1}`, class: cls }));
      }
      for (let h = 0; h < HEADS; h++) {
        const shared = Math.floor((h * kind.kv) / HEADS) === mine;
        node.append(svg("g", { "data-head": h, class: `head ${h === head ? "chosen" : shared ? "mate" : ""}` },
          svg("rect", { x: center(h, HEADS) - cell / 2, y: top - 6, width: cell, height: box + 46, class: "hit" }),
          svg("rect", { x: center(h, HEADS) - box / 2, y: top, width: box, height: box, rx: 4, class: "tile q" }),
          label(h, center(h, HEADS), top + box / 2 + 4.5, "middle")));
      }
      for (let g = 0; g < kind.kv; g++) {
        const x = center(g, kind.kv);
        const letters = wide >= 40;
        node.append(svg("g", { class: `head ${g === mine ? "chosen" : ""}` },
          svg("rect", { x: x - wide / 2, y: low, width: wide / 2 - 1, height: box, rx: 4, class: "tile k" }),
          svg("rect", { x: x + 1, y: low, width: wide / 2 - 1, height: box, rx: 4, class: "tile v" }),
          label(letters ? "K" : "", x - wide / 4, low + box / 2 + 4.5, "middle"), label(letters ? "V" : "", x + wide / 4, low + box / 2 + 4.5, "middle"),
          label(g, x, low + box + 17, "middle", "small")));
      }
      return low + box + 42;
    }

    function drawBars(width, node) {
      const narrow = width < 560;
      const left = narrow ? 1 : 52;
      const right = narrow ? width - 1 : width - 128;
      const row = narrow ? 44 : 30;
      const limit = inAll(KINDS[0], LONGEST);
      const x = (bytes) => left + ((right - left) * bytes) / limit;
      const line = x(WEIGHTS);
      KINDS.forEach((kind, index) => {
        const y = 26 + index * row;
        const bytes = inAll(kind, state.tokens);
        const cls = kind === state.kind ? "chosen" : "";
        const bar = narrow ? y + 18 : y;
        node.append(svg("rect", { x: left, y: bar, width: right - left, height: 16, rx: 3, class: "track" }),
          svg("rect", { x: left, y: bar, width: Math.max(1, x(bytes) - left), height: 16, rx: 3, class: `bar ${cls}` }),
          label(kind.name, narrow ? left : left - 10, y + 12.5, narrow ? "start" : "end", cls),
          label(size(bytes), narrow ? right : right + 10, y + 12.5, narrow ? "end" : "start", `amount ${cls}`));
      });
      const bottom = 26 + KINDS.length * row;
      node.append(svg("line", { x1: line, y1: 18, x2: line, y2: bottom - 6, class: "weights" }),
        label(`all weights, ${size(WEIGHTS)}`, line, 12, narrow ? "start" : "middle", "small"),
        label("0", left, bottom + 8, "start", "small"), label(size(limit), right, bottom + 8, "end", "small"),
        label(`KV cache of all ${LAYERS} layers, bf16`, (left + right) / 2, bottom + 8, "middle", "small"));
      return bottom + 14;
    }
    update();
  }

  function label(text, x, y, anchor, cls = "") {
    return svg("text", { x, y, "text-anchor": anchor, class: cls }, String(text));
  }

  define("gqa-map", build);
})();
