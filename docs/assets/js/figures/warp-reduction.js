/* How 32 numbers become one sum: by shuffles between the lanes of a warp, and by a tree in shared memory.
   Lanes run one way and time the other: across and down on a wide page, down and across on a phone. */
(() => {
  const { define, html, svg, canvas, speaker, step: stepped } = window.Figures;
  const LANES = 32;
  const OFFSETS = [16, 8, 4, 2, 1];
  const BLOCK = 256;
  const OWN = [3, 1, 4, 1, 5, 2, 2, 6, 5, 3, 1, 4, 2, 3, 1, 6, 4, 1, 2, 5, 3, 2, 4, 1, 6, 2, 3, 5, 1, 4, 2, 3]; // sum 97
  const OTHER_WARPS = [88, 101, 79, 95, 104, 83, 92]; // what lane 0 of each other warp of the block holds after its shuffles
  const add = (a, b) => a + b;
  const ROUNDS = Array.from({ length: Math.log2(BLOCK) }, (_, r) => BLOCK >> (r + 1)); // 128, …, 1

  /* One row for each moment: value of each lane, or null where a thread of the tree has nothing to do. */
  const butterfly = [OWN];
  for (const offset of OFFSETS) butterfly.push(OWN.map((_, lane) => butterfly.at(-1)[lane] + butterfly.at(-1)[lane ^ offset]));
  const tree = [OWN];
  for (const offset of OFFSETS) tree.push(OWN.map((_, lane) => (lane < offset ? tree.at(-1)[lane] + tree.at(-1)[lane + offset] : null)));
  const WORDS = [butterfly.at(-1)[0], ...OTHER_WARPS];

  const MODES = {
    shuffle: {
      name: "warp shuffles, v3", rows: butterfly, partner: (lane, offset) => lane ^ offset,
      short: (offset) => `xor ${offset}`, last: 7, who: "lane",
    },
    tree: {
      name: "a tree in shared memory, v2", rows: tree, partner: (lane, offset) => lane + offset,
      short: (offset) => `+ ${offset}`, last: 6, who: "thread",
    },
  };
  const works = (mode, t, lane) => mode.rows[t][lane] !== null;

  function build(root) {
    const state = { mode: MODES.shuffle, t: 1, lane: 5 };
    const status = speaker();

    const choice = html("div", { class: "fig-buttons", role: "radiogroup", "aria-label": "how the sum is made" },
      ...Object.entries(MODES).map(([id, mode]) => {
        const radio = html("input", { type: "radio", name: "kind-of-reduction", value: id });
        radio.checked = mode === state.mode;
        radio.addEventListener("change", () => {
          state.mode = mode;
          state.t = Math.min(state.t, mode.last);
          update();
        });
        return html("label", { class: "fig-radio" }, radio, html("span", {}, mode.name));
      }));

    // aria-disabled and not disabled: the button under the keyboard's focus must not lose it at the last step.
    const button = (text, label, target) => {
      const node = html("button", { type: "button", "aria-label": label }, text);
      node.addEventListener("click", () => go(target()));
      return node;
    };
    const first = button("start", "back to the start", () => 0);
    const back = button("‹ back", "one step back", () => state.t - 1);
    const next = button("step ›", "one step on", () => state.t + 1);
    const place = html("output", { class: "fig-place" });
    const steps = html("div", { class: "fig-buttons", role: "group", "aria-label": "steps" }, first, back, next, place);

    const map = canvas({ class: "wr-lanes", tabindex: 0, role: "slider", "aria-valuemin": 0, "aria-valuemax": LANES - 1 }, drawLanes);
    const block = canvas({ class: "wr-block", role: "img" }, drawBlock);
    const blockLabel = html("p", { class: "fig-label" });
    const facts = html("dl", { class: "fig-facts" });
    root.append(choice, steps, map.node, blockLabel, block.node, facts, status.node);

    function go(t) {
      state.t = Math.min(state.mode.last, Math.max(0, t));
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

    function sentence() {
      const { mode, t, lane } = state;
      const who = `${mode.who} ${lane}`;
      if (t === 0) return mode === MODES.shuffle ? `Each lane has its own sum in a register; lane ${lane} has ${OWN[lane]}.`
        : `Each thread has stored its own sum in shared memory, thread ${lane} the number ${OWN[lane]}, and all have met at a barrier.`;
      if (t <= OFFSETS.length) {
        const offset = OFFSETS[t - 1];
        const name = mode === MODES.shuffle ? `Shuffle ${t}` : `Round ${t}`;
        if (!works(mode, t, lane)) return `${name}: thread ${lane} has nothing to add and waits at the barrier, with ${LANES - offset - 1 || "no"} others.`;
        const partner = mode.partner(lane, offset);
        const [a, b] = [mode.rows[t - 1][lane], mode.rows[t - 1][partner]];
        return `${name}: ${who} reads ${mode === MODES.shuffle ? `lane ${partner}` : `word ${partner}`}: ${a} + ${b} = ${a + b}, `
          + `the sum of ${2 ** t} ${mode.who}s.`;
      }
      if (mode === MODES.tree) return `Word 0 holds ${tree.at(-1)[0]}. Every thread reads it, for every thread needs it.`;
      if (t === 6) return `Lane 0 of each warp stores its sum: ${WORDS.length} words of shared memory, one for each warp of the block.`;
      return `After one barrier every thread reads the ${WORDS.length} words and adds them: ${WORDS.reduce(add)}.`;
    }
    function counts() {
      const { mode, t } = state;
      const rounds = Math.min(t, OFFSETS.length);
      const row = mode.rows[rounds];
      const busy = t === 0 || t > OFFSETS.length ? LANES : row.filter((value) => value !== null).length;
      const holds = t > OFFSETS.length ? LANES : row.filter((value) => value === row[0]).length;
      return [
        [`${mode.who}s with work in this step`, `${busy} of ${LANES}`],
        [`${mode.who}s that hold the sum of all ${LANES}`, `${t < OFFSETS.length ? 0 : holds} of ${LANES}`],
        ["barriers so far (thick lines)", String(mode === MODES.tree ? 1 + rounds : Number(t > 6))],
        [`barriers of a block of ${BLOCK} threads, in all`, String(mode === MODES.tree ? 1 + ROUNDS.length : 1)],
      ];
    }

    function update() {
      const { mode, t, lane } = state;
      const name = t === 0 ? "own sums" : t <= OFFSETS.length ? mode.short(OFFSETS[t - 1]) : mode === MODES.tree ? "word 0 to all" : t === 6 ? "a word from each warp" : "the words to all";
      place.textContent = `${t} of ${mode.last}: ${name}`;
      back.setAttribute("aria-disabled", t === 0);
      first.setAttribute("aria-disabled", t === 0);
      next.setAttribute("aria-disabled", t === mode.last);
      map.node.setAttribute("aria-label", mode.who === "lane" ? "Lane" : "Thread");
      map.node.setAttribute("aria-valuenow", lane);
      map.node.setAttribute("aria-valuetext", sentence());
      blockLabel.textContent = mode === MODES.shuffle ? `The ${BLOCK / LANES} warps of a block of ${BLOCK} threads: one word each, one barrier`
        : `The ${BLOCK / LANES} warps of a block of ${BLOCK} threads: who works in which round`;
      block.node.setAttribute("aria-label", mode === MODES.shuffle ? `sums of the warps: ${WORDS.join(", ")}; together ${WORDS.reduce(add)}`
        : ROUNDS.map((offset) => `offset ${offset}: ${offset} of ${BLOCK} threads work`).join("; "));
      facts.replaceChildren(...counts().flatMap(([key, value]) => [html("dt", {}, key), html("dd", {}, value)]));
      map.redraw();
      block.redraw();
      status.say(sentence());
    }

    function drawLanes(width, node) {
      const { mode, t, lane: chosen } = state;
      const tall = width < 560;
      const moments = OFFSETS.length + 1;
      const [gutter, head] = tall ? [24, 24] : [54, 22];
      const pitch = tall ? 15.5 : (width - gutter) / LANES;
      const pace = tall ? (width - gutter) / moments : 50;
      const [w, h] = tall ? [27, 13.5] : [pitch - 3, 20];
      const at = (lane, moment) => (tall ? [gutter + (moment + 0.5) * pace, head + (lane + 0.5) * pitch] : [gutter + (lane + 0.5) * pitch, head + (moment + 0.25) * pace]);
      const shown = Math.min(t, OFFSETS.length);
      const mine = t > 0 && t <= OFFSETS.length && works(mode, t, chosen) ? cone(t, chosen) : new Set([`${shown}:${chosen}`]);

      for (let lane = 0; lane < LANES; lane++) {
        const [x, y] = at(lane, 0);
        node.append(tall ? label(lane, gutter - 8, y + 4.5, "end", lane === chosen ? "small strong" : "small") : label(lane, x, 11, "middle", lane === chosen ? "small strong" : "small"));
      }
      for (let moment = 0; moment < moments; moment++) {
        const [x, y] = at(0, moment);
        const text = moment === 0 ? "own" : mode.short(OFFSETS[moment - 1]);
        const cls = moment === t ? "small strong" : "small";
        node.append(tall ? label(text, x, 12, "middle", cls) : label(text, 0, y + 4.5, "start", cls));
      }
      const links = [];
      for (let moment = 1; moment <= shown; moment++) {
        for (let lane = 0; lane < LANES; lane++) {
          if (!works(mode, moment, lane)) continue;
          for (const from of [lane, mode.partner(lane, OFFSETS[moment - 1])]) {
            const [a, b] = [at(from, moment - 1), at(lane, moment)];
            const mark = mine.has(`${moment}:${lane}`) ? (moment === t && lane === chosen ? "wire chosen" : "wire mate") : "wire";
            const ends = tall ? [a[0] + w / 2, a[1], b[0] - w / 2, b[1]] : [a[0], a[1] + h / 2, b[0], b[1] - h / 2];
            links.push([mark, svg("line", { x1: ends[0], y1: ends[1], x2: ends[2], y2: ends[3], class: mark })]);
          }
        }
      }
      links.sort(([a], [b]) => a.length - b.length); // the chosen ones on top
      node.append(...links.map(([, line]) => line));
      if (mode === MODES.tree) {
        for (let moment = 0; moment <= shown; moment++) node.append(barrier(moment));
      }
      for (let moment = 0; moment < moments; moment++) {
        for (let lane = 0; lane < LANES; lane++) {
          const [x, y] = at(lane, moment);
          const reached = moment <= shown;
          const idle = reached && !works(mode, moment, lane);
          const cls = !reached ? "slot" : idle ? "slot idle" : `cell ${moment === 0 ? "own" : "sum"} ${mine.has(`${moment}:${lane}`) ? "mate" : ""} ${moment === shown && lane === chosen ? "chosen" : ""}`;
          node.append(svg("rect", { x: x - w / 2, y: y - h / 2, width: w, height: h, rx: 3, class: cls }));
          if (reached && !idle) node.append(label(mode.rows[moment][lane], x, y + 4.5, "middle", cls));
        }
      }
      const last = at(LANES - 1, moments - 1);
      for (let lane = 0; lane < LANES; lane++) { // over all else
        const [x, y] = at(lane, 0);
        node.append(svg("rect", tall ? { x: 0, y: y - pitch / 2, width, height: pitch, class: "hit", "data-lane": lane }
          : { x: x - pitch / 2, y: 0, width: pitch, height: last[1] + h, class: "hit", "data-lane": lane }));
      }
      return last[1] + h / 2 + 4;

      function barrier(moment) {
        const [a, b] = [at(0, moment), at(LANES - 1, moment)];
        const away = tall ? w / 2 + 3.5 : h / 2 + 5;
        return svg("line", tall ? { x1: a[0] + away, y1: a[1] - pitch / 2, x2: b[0] + away, y2: b[1] + pitch / 2, class: "barrier" }
          : { x1: a[0] - pitch / 2, y1: a[1] + away, x2: b[0] + pitch / 2, y2: b[1] + away, class: "barrier" });
      }
    }

    /* The cells, named `moment:lane`, whose values went into the one of `lane` at moment t. */
    function cone(t, lane) {
      const found = new Set();
      let now = new Set([lane]);
      for (let moment = t; moment >= 0; moment--) {
        for (const one of now) found.add(`${moment}:${one}`);
        if (moment > 0) now = new Set([...now].flatMap((one) => [one, state.mode.partner(one, OFFSETS[moment - 1])]));
      }
      return found;
    }

    function drawBlock(width, node) {
      return state.mode === MODES.shuffle ? drawWords(width, node) : drawRounds(width, node);
    }
    function drawWords(width, node) {
      const { t } = state;
      const boxes = WORDS.length + 1;
      const pitch = width / boxes;
      const w = Math.min(pitch - 4, 58);
      WORDS.forEach((word, warp) => {
        const x = (warp + 0.5) * pitch;
        const filled = t >= 6;
        node.append(label(pitch < 50 ? warp : `warp ${warp}`, x, 11, "middle", "small"),
          svg("rect", { x: x - w / 2, y: 18, width: w, height: 24, rx: 3, class: filled ? "cell sum" : "slot" }));
        if (filled) node.append(label(word, x, 34.5, "middle", "cell sum"));
      });
      const x = (boxes - 0.5) * pitch;
      const wall = WORDS.length * pitch;
      if (t >= 7) node.append(svg("line", { x1: wall, y1: 14, x2: wall, y2: 46, class: "barrier" }));
      node.append(label("sum", x, 11, "middle", "small"), svg("rect", { x: x - w / 2, y: 18, width: w, height: 24, rx: 3, class: t >= 7 ? "cell sum chosen" : "slot" }));
      if (t >= 7) node.append(label(WORDS.reduce(add), x, 34.5, "middle", "cell sum chosen"));
      return 46;
    }
    function drawRounds(width, node) {
      const warps = BLOCK / LANES;
      const gutter = 34;
      const row = 17;
      const pitch = Math.min((width - gutter) / warps, 60);
      const current = ROUNDS.length - OFFSETS.length + state.t - 1; // the lanes above are warp 0 in the last rounds
      for (let warp = 0; warp < warps; warp++) node.append(label(pitch < 50 ? warp : `warp ${warp}`, gutter + (warp + 0.5) * pitch, 11, "middle", "small"));
      ROUNDS.forEach((offset, round) => {
        const y = 18 + round * row;
        const now = state.t > 0 && round === current;
        node.append(label(`+ ${offset}`, gutter - 6, y + 11, "end", now ? "small strong" : "small"));
        for (let warp = 0; warp < warps; warp++) {
          const busy = Math.min(1, Math.max(0, offset - warp * LANES) / LANES);
          const x = gutter + warp * pitch + 2;
          node.append(svg("rect", { x, y, width: pitch - 4, height: row - 4, rx: 2, class: "slot idle" }));
          if (busy) node.append(svg("rect", { x, y, width: Math.max(2, busy * (pitch - 4)), height: row - 4, rx: 2, class: `cell sum ${now ? "chosen" : ""}` }));
        }
      });
      return 18 + ROUNDS.length * row;
    }
    update();
  }

  function label(text, x, y, anchor, cls = "") {
    return svg("text", { x, y, "text-anchor": anchor, class: cls }, String(text));
  }

  define("warp-reduction", build);
})();
