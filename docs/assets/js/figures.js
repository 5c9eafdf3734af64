/* Interactive figures. A page asks for one with <div class="figure" data-figure="NAME">…</div>; what stands inside is shown
   by code hosts and when JavaScript is off. A file in figures/ calls Figures.define(NAME, build). No library is used.
   A figure that is drawn from a file names it in data-source; the staging puts its JSON inside the element. */
window.Figures = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const builders = new Map();

  /* build(root, data) fills an empty element; data is what the figure's file holds, if it has one. Whatever goes wrong, the
     fallback comes back. */
  function define(name, build) {
    builders.set(name, build);
    mount();
  }

  function mount() {
    for (const root of document.querySelectorAll("[data-figure]:not([data-ready])")) {
      const build = builders.get(root.dataset.figure);
      if (!build) continue;
      const fallback = [...root.childNodes];
      const source = root.querySelector("script[type='application/json']");
      root.replaceChildren();
      root.dataset.ready = "yes";
      try {
        build(root, source ? JSON.parse(source.textContent) : undefined);
      } catch (error) {
        root.dataset.ready = "failed";
        root.replaceChildren(...fallback);
        console.error(error);
      }
    }
  }

  function fill(node, attributes, children) {
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }
  const html = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
  const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

  /* A drawing whose units are CSS pixels at every width, so that its text never shrinks. draw(width) returns the height. */
  function canvas(attributes, draw) {
    const node = svg("svg", attributes);
    let width = 0;
    const redraw = () => {
      node.replaceChildren();
      const height = draw(width, node);
      fill(node, { viewBox: `0 0 ${width} ${height}`, height }, []);
    };
    new ResizeObserver(([entry]) => {
      const now = Math.floor(entry.contentRect.width);
      if (now > 0 && now !== width) {
        width = now;
        redraw();
      }
    }).observe(node);
    return { node, redraw: () => width && redraw() };
  }

  /* What the arrow, page, home and end keys do to an integer; undefined for other keys. */
  function step(key, value, min, max, page) {
    const target = {
      ArrowRight: value + 1, ArrowUp: value + 1, ArrowLeft: value - 1, ArrowDown: value - 1,
      PageUp: value + page, PageDown: value - page, Home: min, End: max,
    }[key];
    return target === undefined ? undefined : Math.min(max, Math.max(min, target));
  }

  /* A range over integers with a logarithmic track: the pointer reaches far, the arrow keys move by one.
     say(value) is read aloud; changed(value) is called on input only. */
  function slider({ label, tone, min, max, page, say, changed }) {
    const TRACK = 1000;
    const span = Math.log(max - min + 1);
    const input = html("input", { type: "range", min: 0, max: TRACK, step: 1, "aria-label": label });
    const output = html("output");
    const node = html("label", { class: `fig-slider ${tone}` }, html("span", {}, label), output, input);
    let value = min;
    const set = (next) => {
      value = next;
      input.value = Math.round((TRACK * Math.log(value - min + 1)) / span);
      input.setAttribute("aria-valuetext", say(value));
      output.textContent = value.toLocaleString("en");
    };
    input.addEventListener("input", () => {
      const next = Math.round(min + Math.exp((span * input.value) / TRACK) - 1);
      set(next);
      changed(next);
    });
    input.addEventListener("keydown", (event) => {
      const next = step(event.key, value, min, max, page);
      if (next === undefined) return;
      event.preventDefault();
      set(next);
      changed(next);
    });
    return { node, set };
  }

  /* Said aloud once the reader pauses, not at every step of a drag. */
  function speaker() {
    const node = html("p", { class: "fig-status", role: "status", "aria-live": "polite" });
    let timer;
    const say = (text) => {
      clearTimeout(timer);
      timer = setTimeout(() => { node.textContent = text; }, 120);
    };
    return { node, say };
  }

  if (window.document$) window.document$.subscribe(mount);
  else document.addEventListener("DOMContentLoaded", mount);
  return { define, html, svg, canvas, slider, speaker, step };
})();
