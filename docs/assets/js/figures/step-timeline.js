/* One decode step, launched one by one, as a graph, and as a graph of dependent launches: who waits for whom. The arithmetic is that
   of chapters/ch09_graph_capture/cost_model.py. */
(() => {
  const { define, html, svg, canvas, speaker } = window.Figures;
  const DEPENDENT = 0.47 / 0.73; // of a gap, what is left of it: an empty kernel in a graph, with dependent launch and without
  const NEAR = 8; // kernels that are shown from near
  const WAYS = [["one by one", "launched one by one"], ["graph", "one graph"], ["dependent", "one graph, dependent launches"]];
  // name, label, unit, min, max, step, at first
  const SIZES = [
    ["kernels", "launches in a step", "", 8, 300, 1, 142],
    ["launch", "host, for a launch", "µs", 0.5, 10, 0.1, 3.5],
    ["kernel", "device, for a kernel", "µs", 0.5, 10, 0.1, 1.8],
    ["gap", "gap between two kernels", "µs", 0, 3, 0.01, 0.73],
    ["ahead", "read ahead, of a kernel", "%", 0, 80, 1, 40],
  ];

  function spans(state, way) {
    const count = way === "one by one" ? state.kernels : 1;
    const host = Array.from({ length: count }, (_, i) => [i * state.launch, (i + 1) * state.launch]);
    const device = [];
    for (let i = 0; i < state.kernels; i++) {
      const launched = host[Math.min(i, count - 1)][1];
      let begin = launched;
      if (i > 0) {
        const [from, to] = device[i - 1];
        const dependent = way === "dependent";
        const early = dependent ? Math.min((state.ahead / 100) * state.kernel, to - from) : 0;
        begin = Math.max(launched, to + state.gap * (dependent ? DEPENDENT : 1) - early);
      }
      device.push([begin, begin + state.kernel]);
    }
    return { host, device, total: device[state.kernels - 1][1] };
  }
  const us = (x) => `${x >= 100 ? Math.round(x).toLocaleString("en") : x.toFixed(1)} µs`;

  function build(root) {
    const state = Object.fromEntries(SIZES.map(([name, , , , , , value]) => [name, value]));
    state.near = false;
    const status = speaker();

    const sliders = SIZES.map(([name, label, unit, min, max, step]) => {
      const input = html("input", { type: "range", min, max, step, "aria-label": label, "data-size": name });
      const output = html("output");
      input.value = state[name];
      const show = () => {
        const text = `${state[name].toFixed(step < 0.1 ? 2 : step < 1 ? 1 : 0)} ${unit}`.trim();
        output.textContent = text;
        input.setAttribute("aria-valuetext", text);
      };
      show();
      input.addEventListener("input", () => { state[name] = Number(input.value); show(); update(); });
      return html("label", { class: "fig-slider" }, html("span", {}, label), output, input);
    });
    const views = html("div", { class: "fig-buttons", role: "radiogroup", "aria-label": "shown" }, html("span", {}, "shown"),
      ...[["the whole step", false], [`its first ${NEAR} kernels`, true]].map(([text, near]) => {
        const radio = html("input", { type: "radio", name: "step-timeline", value: near });
        radio.checked = near === state.near;
        radio.addEventListener("change", () => { state.near = near; update(); });
        return html("label", { class: "fig-radio" }, radio, html("span", {}, text));
      }));
    const map = canvas({ class: "st-map", role: "img" }, draw);
    root.append(html("div", { class: "st-sizes" }, ...sliders), views, map.node, status.node);

    function sentence() {
      const [single, graph, dependent] = WAYS.map(([way]) => spans(state, way).total);
      const busy = Math.round((100 * state.kernels * state.kernel) / single);
      const waits = state.launch > state.kernel + state.gap
        ? `the device waits for the host, and is busy for ${busy} % of the time`
        : `the host is ahead of the device, which is busy for ${busy} % of the time`;
      return `Launched one by one a step takes ${us(single)}: ${waits}. A graph takes ${us(graph)}, with dependent launches ${us(dependent)}: `
        + `${(single / graph).toFixed(2)} and ${(single / dependent).toFixed(2)} times as fast.`;
    }

    function update() {
      const said = sentence();
      map.node.setAttribute("aria-label", said);
      map.redraw();
      status.say(said);
    }

    const [TOP, PITCH, HIGH] = [18, 74, 16];
    function draw(width, node) {
      const all = WAYS.map(([way, title]) => ({ way, title, ...spans(state, way) }));
      const shown = state.near ? NEAR : state.kernels;
      const longest = Math.max(...all.map(({ device }) => device[shown - 1][1]));
      const scale = (width - 78) / longest; // behind the last kernel stands the time
      all.forEach(({ way, title, host, device, total }, row) => {
        const top = row * PITCH;
        const bar = ([begin, end], y, cls) => svg("rect", {
          x: begin * scale, y, width: Math.max((end - begin) * scale - (state.near ? 1 : 0), 0.4), height: HIGH, class: cls,
        });
        node.append(label(title, 0, top + 12, "strong"));
        const last = device[shown - 1][1];
        host.slice(0, shown).forEach((span) => node.append(bar(span, top + TOP, "st-host")));
        device.slice(0, shown).forEach((span, i) => {
          const low = state.near && i % 2 ? 5 : 0; // so that overlaps are seen
          node.append(bar(span, top + TOP + HIGH + 6 + low, `st-device ${i % 2 ? "odd" : ""}`));
          const cause = host[i];
          if (state.near && cause) {
            node.append(svg("line", { x1: cause[1] * scale, y1: top + TOP + HIGH, x2: span[0] * scale, y2: top + TOP + HIGH + 6, class: "st-cause" }));
          }
        });
        const text = label(us(state.near ? last : total), last * scale + 6, top + TOP + HIGH + 19, "amount");
        text.dataset.way = way;
        node.append(text);
      });
      const bottom = WAYS.length * PITCH;
      node.append(svg("rect", { x: 0, y: bottom, width: 12, height: 12, class: "st-host" }), label("the host launches", 18, bottom + 11, "small"),
        svg("rect", { x: 138, y: bottom, width: 12, height: 12, class: "st-device" }), label("the device computes", 156, bottom + 11, "small"));
      return bottom + 18;
    }
    update();
  }

  function label(text, x, y, cls = "") {
    return svg("text", { x, y, class: cls }, String(text));
  }

  define("step-timeline", build);
})();
