/* The linear layers of Qwen3-0.6B under the roof of an H200: bytes and flop of a product of `rows` tokens, counted from its
   shape. The roof is of the data sheet: bandwidth, the peak of the tensor cores in bfloat16, that of fp32 arithmetic. */
(() => {
  const { define, html, svg, canvas, slider, speaker } = window.Figures;
  const LAYERS = [["QKV", 4096, 1024], ["O", 1024, 2048], ["gate/up", 6144, 1024], ["down", 1024, 3072], ["head", 151936, 1024]];
  const BYTES = 2; // of a bf16
  const READ = 4.8e12; // bytes a second
  const TENSOR = 989e12; // flop a second
  const FP32 = 67e12;
  const MOST = 4096; // rows
  const X = [0.5, 4096]; // flop a byte
  const Y = [1e12, 2e15]; // flop a second

  function work([, n, k], rows) {
    const bytes = BYTES * (n * k + rows * (n + k));
    const flop = 2 * n * k * rows;
    return { bytes, flop, intensity: flop / bytes, us: 1e6 * Math.max(bytes / READ, flop / TENSOR) };
  }
  const roof = (intensity) => Math.min(TENSOR, READ * intensity);
  const digits = (x) => (x < 0.995 ? x.toPrecision(3) : x < 9.995 ? x.toFixed(2) : x < 99.95 ? x.toFixed(1) : Math.round(x).toLocaleString("en"));
  const amount = (flop) => (flop < 1e9 ? `${digits(flop / 1e6)} M` : `${digits(flop / 1e9)} G`);
  const counted = (rows) => `${rows.toLocaleString("en")} row${rows > 1 ? "s" : ""}`;

  function build(root) {
    const state = { layer: 1, rows: 1 };
    const status = speaker();
    const radios = html("div", { class: "fig-buttons", role: "radiogroup", "aria-label": "layer" },
      html("span", {}, "layer"), ...LAYERS.map(([name], i) => {
        const radio = html("input", { type: "radio", name: "roofline-layer", value: name });
        radio.checked = i === state.layer;
        radio.addEventListener("change", () => { state.layer = i; update(); });
        return html("label", { class: "fig-radio" }, radio, html("span", {}, name));
      }));
    const rows = slider({ label: "rows of x", tone: "q", min: 1, max: MOST, page: 64, say: counted, changed: (value) => { state.rows = value; update(); } });
    const map = canvas({ class: "lr-map", role: "img" }, draw);
    const facts = html("dl", { class: "fig-facts" });
    root.append(radios, rows.node, map.node, facts, status.node);
    rows.set(state.rows);

    function update() {
      const [name, n, k] = LAYERS[state.layer];
      const { bytes, flop, intensity, us } = work(LAYERS[state.layer], state.rows);
      const memory = bytes / READ >= flop / TENSOR;
      facts.replaceChildren(...[
        ["bytes that must move", `${digits(bytes / 1e6)} MB`, "lr-bytes"],
        ["flop", amount(flop), "lr-flop"],
        ["flop a byte", digits(intensity), "strong lr-intensity"],
        ["memory needs", `${digits((1e6 * bytes) / READ)} µs`, "lr-memory"],
        ["tensor cores need", `${digits((1e6 * flop) / TENSOR)} µs`, "lr-tensor"],
        ["at least", `${digits(us)} µs`, "strong lr-us"],
      ].flatMap(([key, value, cls]) => [html("dt", {}, key), html("dd", { class: cls }, value)]));
      const said = `${name}, ${k.toLocaleString("en")} to ${n.toLocaleString("en")}, ${counted(state.rows)}: ${digits(intensity)} flop a byte. ` +
        (memory ? `Memory decides: the tensor cores would be busy for ${digits((100 * flop) / TENSOR / (bytes / READ))} % of the time.`
          : `Arithmetic decides: memory would be busy for ${digits((100 * bytes) / READ / (flop / TENSOR))} % of the time.`);
      map.node.setAttribute("aria-label", said);
      map.redraw();
      status.say(said);
    }

    function draw(width, node) {
      const [left, top, height] = [46, 14, 220];
      const wide = width - left - 12;
      const along = (value, [low, high]) => Math.log(value / low) / Math.log(high / low);
      const x = (intensity) => left + wide * along(intensity, X);
      const y = (speed) => top + height * (1 - along(speed, Y));
      const line = (points, cls) => svg("polyline", { points: points.map(([a, b]) => `${x(a)},${y(b)}`).join(" "), class: cls });
      for (const [mark, text] of [[1e12, "1"], [1e13, "10"], [1e14, "100"], [1e15, "1,000"]]) {
        node.append(svg("line", { x1: left, x2: left + wide, y1: y(mark), y2: y(mark), class: "lr-grid" }), label(text, left - 6, y(mark) + 4, "small", "end"));
      }
      for (const mark of [1, 10, 100, 1000]) {
        node.append(svg("line", { x1: x(mark), x2: x(mark), y1: top, y2: top + height, class: "lr-grid" }), label(mark.toLocaleString("en"), x(mark), top + height + 16, "small"));
      }
      const ridge = TENSOR / READ;
      node.append(line([[X[0], roof(X[0])], [ridge, TENSOR], [X[1], TENSOR]], "lr-roof"),
        line([[FP32 / READ, FP32], [X[1], FP32]], "lr-fp32"),
        label("tensor cores, bf16", x(X[1]), y(TENSOR) - 6, "small", "end"), label("fp32, no tensor cores", x(X[1]), y(FP32) + 15, "small", "end"),
        label("TFLOP/s", 0, top - 2, "small", "start"), label("flop a byte", left + wide, top + height + 32, "small", "end"));
      const point = (layer, r, cls) => {
        const { intensity } = work(layer, state.rows);
        node.append(svg("circle", { cx: x(intensity), cy: y(roof(intensity)), r, class: `lr-point ${cls}` }));
      };
      for (const layer of LAYERS) point(layer, 4, "");
      point(LAYERS[state.layer], 7, "chosen");
      const { intensity } = work(LAYERS[state.layer], state.rows);
      const end = intensity > 100;
      node.append(label(LAYERS[state.layer][0], x(intensity) + (end ? -12 : 12), y(roof(intensity)) + 20, "strong", end ? "end" : "start"));
      return top + height + 38;
    }
    update();
  }

  function label(text, x, y, cls, anchor = "middle") {
    return svg("text", { x, y, "text-anchor": anchor, class: cls }, String(text));
  }

  define("linear-roofline", build);
})();
