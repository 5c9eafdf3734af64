/* How many bytes of weights a kernel has on their way, and which bandwidth that allows by Little's law. Each lane asks for
   16 bytes of each of its rows at once. A model of an H200: its data sheet, 600 ns from request to answer. */
(() => {
  const { define, html, svg, canvas, slider, speaker } = window.Figures;
  const SMS = 132;
  const READ = 4.8e12; // bytes a second
  const LATENCY = 600e-9; // seconds
  const REGISTERS = 65536; // of an SM, of 32 bits
  const WARPS = 64; // that an SM holds
  const BLOCKS = 32;
  const OWN = 28; // registers of a lane beside its weights: x, addresses, what the compiler needs
  const WORD = 16; // bytes a load
  const NEEDED = (READ * LATENCY) / SMS; // bytes on their way, of each SM

  /* What an SM holds of blocks of `warps` warps, `rows` loads a lane; `blocks` are wanted. */
  function resident({ rows, warps, blocks }) {
    const registers = 8 * Math.ceil((OWN + 4 * rows) / 8);
    const fit = Math.min(BLOCKS, Math.floor(WARPS / warps), Math.floor(REGISTERS / (32 * warps * registers)));
    const held = Math.min(blocks, fit);
    const bytes = held * warps * 32 * rows * WORD;
    return { registers, fit, held, bytes, speed: Math.min(READ, (SMS * bytes) / LATENCY) };
  }
  const kib = (bytes) => `${(bytes / 1024).toFixed(bytes < 10240 ? 1 : 0)} KiB`;

  function build(root) {
    const state = { rows: 1, warps: 8, blocks: 2 };
    const status = speaker();
    const control = (name, label, max, unit) => slider({
      label, tone: "q", min: 1, max, page: 4, say: (value) => `${value} ${unit}`,
      changed: (value) => { state[name] = value; update(); },
    });
    const controls = { rows: control("rows", "rows of W a warp", 24, "rows"), warps: control("warps", "warps a block", 32, "warps"), blocks: control("blocks", "blocks an SM", 16, "blocks") };
    const map = canvas({ class: "lf-map", role: "img" }, draw);
    const facts = html("dl", { class: "fig-facts" });
    root.append(html("div", { class: "fig-row co-counts" },
      html("div", { class: "fig-side" }, ...Object.values(controls).map((one) => one.node)),
      html("div", { class: "fig-side" }, facts)), map.node, status.node);
    for (const [name, one] of Object.entries(controls)) one.set(state[name]);

    function update() {
      const now = resident(state);
      facts.replaceChildren(...[
        ["registers a lane", now.registers, "lf-registers"],
        ["blocks that fit", now.fit, "lf-fit"],
        ["warps on an SM", now.held * state.warps, "lf-warps"],
        ["on their way, an SM", kib(now.bytes), "strong lf-bytes"],
        ["needed", kib(NEEDED), "lf-needed"],
        ["bandwidth at most", `${(now.speed / 1e12).toFixed(2)} TB/s`, "strong lf-speed"],
      ].flatMap(([key, value, cls]) => [html("dt", {}, key), html("dd", { class: cls }, String(value))]));
      const less = now.held < state.blocks ? ` Only ${now.held} of ${state.blocks} blocks fit on an SM.` : "";
      const said = now.held === 0 ? "Not one such block fits on an SM: its lanes need more registers than there are."
        : `${now.held * state.warps} warps with ${state.rows} load${state.rows > 1 ? "s" : ""} a lane have ${kib(now.bytes)} on their way: ${
          now.speed < READ ? `${Math.round((100 * now.speed) / READ)} % of the bandwidth.` : "enough for all of the bandwidth."}${less}`;
      map.node.setAttribute("aria-label", said);
      map.redraw();
      status.say(said);
    }

    /* Bandwidth against bytes on their way: a slope, then the roof. */
    function draw(width, node) {
      const [left, top, height, most] = [46, 20, 150, 160 * 1024];
      const wide = width - left - 12;
      const x = (bytes) => left + (wide * Math.min(bytes, most)) / most;
      const y = (speed) => top + height * (1 - speed / (1.1 * READ));
      for (const mark of [0, 1, 2, 3, 4]) {
        node.append(svg("line", { x1: left, x2: left + wide, y1: y(mark * 1e12), y2: y(mark * 1e12), class: "lr-grid" }), label(mark, left - 6, y(mark * 1e12) + 4, "small", "end"));
      }
      for (const mark of [0, 32, 64, 96, 128, 160]) node.append(label(mark, x(mark * 1024), top + height + 16, "small"));
      const now = resident(state);
      node.append(svg("polyline", { points: `${x(0)},${y(0)} ${x(NEEDED)},${y(READ)} ${x(most)},${y(READ)}`, class: "lr-roof" }),
        label("TB/s", 0, top - 6, "small", "start"), label("KiB on their way, of each SM", left + wide, top + height + 32, "small", "end"),
        svg("line", { x1: x(now.bytes), x2: x(now.bytes), y1: y(now.speed), y2: y(0), class: "lf-drop" }),
        svg("circle", { cx: x(now.bytes), cy: y(now.speed), r: 7, class: "lr-point chosen" }));
      return top + height + 38;
    }
    update();
  }

  function label(text, x, y, cls, anchor = "middle") {
    return svg("text", { x, y, "text-anchor": anchor, class: cls }, String(text));
  }

  define("loads-in-flight", build);
})();
