/* The codes of FP8, FP4 and their scales, bit by bit: what a code stands for, what lies beside it, and where a number between
   them goes. The arithmetic is that of qwen3_ref/narrow_floats.py. */
(() => {
  const { define, html, svg, canvas, speaker } = window.Figures;
  const FORMATS = {
    E4M3: { exponent: 4, significand: 3, bias: 7, signed: true, none: 0x7f, first: 0x4d },
    E2M1: { exponent: 2, significand: 1, bias: 1, signed: true, none: -1, first: 5 },
    UE8M0: { exponent: 8, significand: 0, bias: 127, signed: false, none: 0xff, first: 125 },
  };
  const MIDDLE = 100; // of the slider between a number's neighbours: the number itself
  const FIRST_PLACE = 130;

  const widthOf = (format) => format.exponent + format.significand + (format.signed ? 1 : 0);
  const count = (format) => 2 ** widthOf(format);
  const binary = (x, digits) => x.toString(2).padStart(digits, "0");
  const SUPER = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
  const power = (exponent) => `2${[...String(exponent)].map((digit) => SUPER[digit]).join("")}`;
  const minus = (text) => text.replace("e+", "e").replace("e-", "e−").replace(/^-/, "−");
  const shown = (x) => (Object.is(x, -0) ? "−0" : minus(String(Number(x.toPrecision(6)))));

  function fields(format, code) {
    const rest = format.exponent + format.significand;
    return {
      sign: format.signed ? code >> rest : 0,
      exponent: (code >> format.significand) & (2 ** format.exponent - 1),
      significand: code & (2 ** format.significand - 1),
      magnitude: code & (2 ** rest - 1),
    };
  }
  /* The number that a code stands for; NaN where it stands for none. */
  function valueOf(format, code) {
    const { sign, exponent, significand, magnitude } = fields(format, code);
    if (magnitude === format.none) return NaN;
    const part = significand / 2 ** format.significand;
    const small = exponent === 0 && format.signed;
    const value = small ? part * 2 ** (1 - format.bias) : (1 + part) * 2 ** (exponent - format.bias);
    return sign ? -value : value;
  }
  /* The codes below and above; undefined where the format ends. Both zeros lie between the same two. */
  function neighbours(format, code) {
    if (!format.signed) return { below: code > 0 ? code - 1 : undefined, above: code < format.none - 1 ? code + 1 : undefined };
    const { sign, magnitude } = fields(format, code);
    const half = count(format) / 2;
    const largest = format.none < 0 ? half - 1 : format.none - 1;
    const out = magnitude < largest ? magnitude + 1 : undefined;
    if (magnitude === 0) return { below: half + 1, above: 1 };
    const [inward, outward] = [sign * half + magnitude - 1, out === undefined ? undefined : sign * half + out];
    return sign ? { below: outward, above: inward } : { below: inward, above: outward };
  }
  /* Where x, which lies between the neighbours of a code, goes: to the nearest, from the middle to the even code; a scale goes up. */
  function rounded(format, code, x) {
    const { below, above } = neighbours(format, code);
    const near = [below, code, above].filter((one) => one !== undefined);
    if (!format.signed) return near.find((one) => valueOf(format, one) >= x);
    return near.reduce((best, one) => {
      const [a, b] = [Math.abs(valueOf(format, one) - x), Math.abs(valueOf(format, best) - x)];
      return a < b || (a === b && one % 2 === 0 && best % 2 === 1) ? one : best;
    });
  }

  function build(root) {
    const state = { name: "E4M3", code: FORMATS.E4M3.first, place: FIRST_PLACE };
    const status = speaker();
    const format = () => FORMATS[state.name];

    const choice = html("div", { class: "fig-buttons", role: "radiogroup", "aria-label": "format" },
      html("span", {}, "format"), ...Object.keys(FORMATS).map((name) => {
        const radio = html("input", { type: "radio", name: "number-formats", value: name });
        radio.checked = name === state.name;
        radio.addEventListener("change", () => { Object.assign(state, { name, code: FORMATS[name].first, place: FIRST_PLACE }); update(); });
        return html("label", { class: "fig-radio" }, radio, html("span", {}, name));
      }));
    const range = (label, tone, changed) => {
      const input = html("input", { type: "range", step: 1, min: 0, "aria-label": label });
      const output = html("output");
      input.addEventListener("input", () => { changed(Number(input.value)); update(); });
      return { input, output, node: html("label", { class: `fig-slider ${tone}` }, html("span", {}, label), output, input) };
    };
    const code = range("code", "k", (value) => { state.code = value; state.place = MIDDLE; });
    const between = range("a number between its neighbours", "q", (value) => { state.place = value; });
    const bits = canvas({ class: "nf-bits", role: "img" }, drawBits);
    const all = canvas({ class: "nf-all", role: "img" }, drawAll);
    const near = canvas({ class: "nf-near", role: "img" }, drawNear);
    const facts = html("dl", { class: "fig-facts" });
    root.append(choice, code.node, bits.node, html("p", { class: "fig-label" }, "all its positive numbers, each power of two as wide as the next"), all.node,
      html("p", { class: "fig-label" }, "the code, the codes beside it, and where a number goes"), near.node, between.node, facts, status.node);

    bits.node.addEventListener("pointerdown", (event) => { // a bit that is pointed at is flipped
      const box = bits.node.getBoundingClientRect();
      const wide = cellWidth(box.width);
      const bit = Math.floor((event.clientX - box.left) / wide);
      if (bit < 0 || bit >= widthOf(format()) || event.clientY - box.top > 34) return;
      state.code ^= 1 << (widthOf(format()) - 1 - bit);
      state.place = MIDDLE;
      update();
    });

    /* What the picture of the neighbours spans: beyond the last number as far as before it. */
    function span() {
      const { below, above } = neighbours(format(), state.code);
      const value = valueOf(format(), state.code);
      const [low, high] = [below, above].map((one) => (one === undefined ? undefined : valueOf(format(), one)));
      return { value, below, above, low: low ?? (format().signed ? 2 * value - high : 0), high: high ?? 2 * value - low };
    }
    function found() {
      const { value, low, high } = span();
      if (Number.isNaN(value)) return { x: NaN, to: undefined };
      const part = state.place / MIDDLE;
      const x = part <= 1 ? low + (value - low) * part : value + (high - value) * (part - 1);
      return { x, to: rounded(format(), state.code, x) };
    }
    const most = () => (!format().signed && neighbours(format(), state.code).above === undefined ? MIDDLE : 2 * MIDDLE);

    function sentence() {
      const digits = binary(state.code, widthOf(format()));
      const { value, low, high, above, below } = span();
      if (Number.isNaN(value)) return `${state.name}: ${digits} is no number. A group that has lost its numbers says so with it.`;
      const { x, to } = found();
      const end = above === undefined || below === undefined ? " Beyond its end the format saturates." : "";
      const how = format().signed ? "goes to" : "gets the scale";
      return `${state.name}: ${digits} is ${shown(value)}, and lies between ${shown(low)} and ${shown(high)}. ${shown(x)} ${how} ${shown(valueOf(format(), to))}.${format().signed ? end : ""}`;
    }

    function update() {
      const of = format();
      const { exponent, significand, sign } = fields(of, state.code);
      const { value, low, high, below, above } = span();
      const { x, to } = found();
      code.input.max = count(of) - 1;
      code.input.value = state.code;
      code.output.textContent = binary(state.code, widthOf(of));
      between.input.max = most();
      state.place = Math.min(state.place, most());
      between.input.value = state.place;
      between.input.disabled = Number.isNaN(value);
      between.output.textContent = Number.isNaN(value) ? "–" : shown(x);
      const small = exponent === 0 && of.signed;
      const formula = Number.isNaN(value) ? "none" : of.significand === 0 ? power(exponent - of.bias)
        : `${sign ? "−" : ""}${power((small ? 1 : exponent) - of.bias)} · (${small ? 0 : 1} + ${significand}/${2 ** of.significand})`;
      facts.replaceChildren(...[
        ["the code stands for", formula, "nf-formula"],
        ["which is", Number.isNaN(value) ? "NaN" : shown(value), "strong nf-value"],
        ["to the next below, above", Number.isNaN(value) ? "–" : `${below === undefined && !of.signed ? "–" : shown(value - low)}, ${above === undefined ? "–" : shown(high - value)}`, "nf-gaps"],
        [of.signed ? "the number goes to" : "amax ÷ largest gets the scale", to === undefined ? "–" : shown(valueOf(of, to)), "strong nf-rounded"],
        [of.signed ? "and errs by" : "and the scale is larger by", to === undefined || x === 0 ? "–" : `${(100 * Math.abs(valueOf(of, to) / x - 1)).toFixed(1)} %`, "nf-error"],
      ].flatMap(([key, text, cls]) => [html("dt", {}, key), html("dd", { class: cls }, text)]));
      const said = sentence();
      code.input.setAttribute("aria-valuetext", said);
      between.input.setAttribute("aria-valuetext", said);
      for (const picture of [bits, all, near]) {
        picture.node.setAttribute("aria-label", said);
        picture.redraw();
      }
      status.say(said);
    }

    const cellWidth = (width) => Math.min(44, width / 8);
    function drawBits(width, node) {
      const of = format();
      const wide = cellWidth(width);
      const sign = of.signed ? 1 : 0;
      [...binary(state.code, widthOf(of))].forEach((text, i) => {
        const cls = i < sign ? "sign" : i < sign + of.exponent ? "exponent" : "byte";
        node.append(svg("rect", { x: i * wide + 0.5, y: 4, width: wide - 1, height: 28, class: `cell ${cls}`, "data-bit": i }),
          label(text, (i + 0.5) * wide, 22.5, "cell"));
      });
      const parts = [["sign", 0, sign], [width < 420 ? "exp." : "exponent", sign, of.exponent], [width < 420 ? "sig." : "significand", sign + of.exponent, of.significand]];
      for (const [text, first, size] of parts) if (size) node.append(label(text, (first + size / 2) * wide, 48, "small"));
      return 54;
    }

    /* One tick a number on a logarithmic line; zero stands apart on the left. */
    function drawAll(width, node) {
      const of = format();
      const [left, right, y] = [30, width - 12, 26];
      const positive = Array.from({ length: count(of) }, (_, i) => i).filter((one) => valueOf(of, one) > 0);
      const [low, high] = [positive[0], positive[positive.length - 1]].map((one) => Math.log2(valueOf(of, one)));
      const at = (value) => left + ((Math.log2(value) - low) / (high - low)) * (right - left);
      node.append(svg("line", { x1: left, x2: right, y1: y, y2: y, class: "axis" }));
      for (const one of positive) {
        const whole = fields(of, one).significand === 0;
        const [x, up] = [at(valueOf(of, one)), whole ? 8 : 5];
        node.append(svg("line", { x1: x, x2: x, y1: y - up, y2: y + up, class: `nf-tick ${whole ? "whole" : ""}`, "data-value": valueOf(of, one) }));
      }
      if (of.signed) node.append(svg("line", { x1: 8, x2: 8, y1: y - 8, y2: y + 8, class: "nf-tick whole" }), label("0", 8, 52, "small"));
      const value = Math.abs(valueOf(of, state.code));
      if (!Number.isNaN(value)) node.append(svg("circle", { cx: value === 0 ? 8 : at(value), cy: y, r: 5, class: "nf-code" }));
      const name = (one) => (of.signed ? shown(valueOf(of, one)) : power(one - of.bias));
      const [first, last] = [positive[0], positive[positive.length - 1]];
      node.append(label(name(first), left, 52, "small", "start"), label(name(last), width, 52, "small", "end"));
      return 58;
    }

    function drawNear(width, node) {
      const { value, low, high, below, above } = span();
      if (Number.isNaN(value)) {
        node.append(label("this code is no number", width / 2, 40, "small"));
        return 84;
      }
      const [left, right, y] = [28, width - 28, 44];
      const at = (number) => left + ((number - low) / (high - low)) * (right - left);
      const { x, to } = found();
      node.append(svg("line", { x1: left, x2: right, y1: y, y2: y, class: "axis" }));
      const tick = (number, one, anchor, where) => {
        const there = one !== undefined || (number === 0 && !format().signed);
        node.append(svg("line", { x1: at(number), x2: at(number), y1: y - 10, y2: y + 10, class: `nf-mark ${there ? "" : "none"} ${one === to ? "chosen" : ""}` }),
          label(one === undefined ? (format().signed ? "beyond" : "0") : shown(number), where, y + 28, one === to ? "small strong" : "small", anchor));
      };
      tick(low, below, "start", 0);
      tick(value, state.code, "middle", at(value));
      tick(high, above, "end", width);
      if (format().signed) for (const middle of [(low + value) / 2, (value + high) / 2]) {
        node.append(svg("line", { x1: at(middle), x2: at(middle), y1: y - 10, y2: y + 10, class: "nf-middle" }));
      }
      const [from, target] = [at(x), at(valueOf(format(), to))];
      node.append(svg("path", { d: `M ${from} ${y - 6} C ${from} ${y - 34}, ${target} ${y - 34}, ${target} ${y - 12}`, class: "nf-arrow" }),
        svg("circle", { cx: from, cy: y, r: 5.5, class: "nf-x" }));
      return y + 36;
    }
    update();
  }

  function label(text, x, y, cls, anchor = "middle") {
    return svg("text", { x, y, "text-anchor": anchor, class: cls }, String(text));
  }

  define("number-formats", build);
})();
