/* A small paged cache to play with: sequences take blocks, share them, copy and free them, as
   chapters/ch04_paged_kv/paged_cache.py does with tokens=96 and block_size=8. */
(() => {
  const { define, html, svg, canvas, speaker, step: stepped } = window.Figures;
  const BLOCKS = 12;
  const BLOCK_SIZE = 8;
  const PROMPT = 11;
  const MOST = 4; // sequences at a time, a colour each
  const SLOT_BYTES = 8 * 128 * 2; // of K in one layer of Qwen3-0.6B, bf16
  const TONES = ["q", "k", "v", "other"];
  const number = (value) => value.toLocaleString("en");
  const words = (count, what) => `${number(count)} ${what}${count === 1 ? "" : "s"}`;

  /* BlockPool and PagedKVCache in a few lines. Whatever cannot be done throws, and changes nothing. */
  class Cache {
    free = Array.from({ length: BLOCKS }, (_, i) => BLOCKS - 1 - i); // the last one goes first
    users = new Array(BLOCKS).fill(0);
    sequences = new Map(); // number → { length, blocks }
    born = 0;

    enter(one) {
      this.sequences.set(this.born, one);
      return this.born++;
    }
    append(sequence, count) {
      const one = this.sequences.get(sequence);
      const blocks = [...one.blocks];
      const taken = [];
      const take = () => {
        const block = this.free[this.free.length - 1 - taken.length];
        taken.push(block);
        return block;
      };
      let copy;
      if (one.length % BLOCK_SIZE && this.users[blocks.at(-1)] > 1) {
        copy = [blocks.at(-1), take()];
        blocks[blocks.length - 1] = copy[1];
      }
      while (blocks.length * BLOCK_SIZE < one.length + count) blocks.push(take());
      if (taken.length > this.free.length) {
        throw new RangeError(`${taken.length} more block${taken.length === 1 ? " is" : "s are"} needed and ${this.free.length} of ${BLOCKS} ${this.free.length === 1 ? "is" : "are"} free. Nothing has changed.`);
      }
      for (const block of taken) {
        this.free.pop();
        this.users[block] = 1;
      }
      if (copy) this.release([copy[0]]);
      const first = one.length;
      Object.assign(one, { length: first + count, blocks });
      return { slots: Array.from({ length: count }, (_, i) => slotOf(one, first + i)), copy };
    }
    fork(sequence) {
      const { length, blocks } = this.sequences.get(sequence);
      for (const block of blocks) this.users[block] += 1;
      return this.enter({ length, blocks: [...blocks] });
    }
    forget(sequence) {
      this.release(this.sequences.get(sequence).blocks);
      this.sequences.delete(sequence);
    }
    release(blocks) {
      for (const block of blocks) {
        this.users[block] -= 1;
        if (this.users[block] === 0) this.free.push(block);
      }
    }
  }
  const slotOf = ({ blocks }, token) => blocks[Math.floor(token / BLOCK_SIZE)] * BLOCK_SIZE + (token % BLOCK_SIZE);

  function build(root) {
    let cache;
    let chosen; // sequence
    let token;
    let said;
    let slots;
    const tones = new Map();
    const status = speaker();

    const button = (text, label, act) => {
      const node = html("button", { type: "button", "aria-label": label }, text);
      node.addEventListener("click", () => node.getAttribute("aria-disabled") !== "true" && run(act));
      return node;
    };
    const fresh = button("new sequence", `a new sequence with a prompt of ${PROMPT} tokens`, () => {
      const one = cache.enter({ length: 0, blocks: [] });
      try {
        grow(one, PROMPT);
      } catch (error) {
        cache.sequences.delete(one);
        throw error;
      }
    });
    const one = button("+ 1 token", "append one token", () => grow(chosen, 1));
    const many = button("+ 5", "append five tokens", () => grow(chosen, 5));
    const fork = button("fork", "fork: a second sequence with the same tokens", () => {
      const child = cache.fork(chosen);
      said = `Sequence ${child} has the same ${words(cache.sequences.get(child).length, "token")} as ${chosen} and the same blocks. Nothing was copied.`;
      choose(child);
    });
    const free = button("free", "free the sequence", () => {
      const before = cache.free.length;
      cache.forget(chosen);
      tones.delete(chosen);
      said = `Sequence ${chosen} is gone. ${words(cache.free.length - before, "block")} free again; those that others share stay.`;
      slots = [];
      choose([...cache.sequences.keys()].at(-1));
    });
    const reset = button("start over", "start over", start);
    const who = html("div", { class: "fig-buttons", role: "radiogroup", "aria-label": "sequence" });
    const acts = html("div", { class: "fig-buttons", role: "group", "aria-label": "what to do" }, fresh, one, many, fork, free, reset);
    const map = canvas({ class: "bt-map", tabindex: 0, role: "slider", "aria-label": "Token of the sequence", "aria-valuemin": 0 }, draw);
    const where = html("dl", { class: "fig-facts" });
    const pool = html("dl", { class: "fig-facts" });
    root.append(acts, who, map.node, html("div", { class: "fig-row co-counts" },
      html("div", { class: "fig-side" }, html("p", { class: "fig-label" }, "the token"), where),
      html("div", { class: "fig-side" }, html("p", { class: "fig-label" }, "the cache"), pool)), status.node);

    function start() {
      cache = new Cache();
      tones.clear();
      slots = [];
      for (const tokens of [PROMPT, 6]) grow(cache.enter({ length: 0, blocks: [] }), tokens);
      grow(0, 8);
      choose(0);
    }
    function choose(sequence) {
      chosen = sequence;
      token = sequence === undefined ? 0 : Math.max(0, cache.sequences.get(sequence).length - 1);
      if (sequence !== undefined && !tones.has(sequence)) tones.set(sequence, TONES.find((tone) => ![...tones.values()].includes(tone)));
    }
    function grow(sequence, count) {
      const first = cache.sequences.get(sequence).length;
      const { slots: these, copy } = cache.append(sequence, count);
      choose(sequence);
      slots = these;
      const copied = copy ? ` Block ${copy[0]} is shared, so it is copied to block ${copy[1]} first.` : "";
      said = `Sequence ${sequence} gets ${count === 1 ? `token ${first}` : `tokens ${first} to ${first + count - 1}`}.${copied}`;
    }
    function run(act) {
      try {
        act();
      } catch (error) {
        if (!(error instanceof RangeError)) throw error;
        said = error.message;
      }
      update();
    }
    function point(to) {
      token = to;
      said = "";
      update();
    }
    map.node.addEventListener("keydown", (event) => {
      const last = chosen === undefined ? 0 : cache.sequences.get(chosen).length - 1;
      const to = stepped(event.key, token, 0, Math.max(0, last), BLOCK_SIZE);
      if (to === undefined) return;
      event.preventDefault();
      point(to);
    });
    map.node.addEventListener("pointerdown", (event) => {
      const hit = document.elementFromPoint(event.clientX, event.clientY)?.closest("[data-slot]");
      if (!hit || chosen === undefined) return;
      const mine = cache.sequences.get(chosen);
      const slot = Number(hit.dataset.slot);
      const index = mine.blocks.indexOf(Math.floor(slot / BLOCK_SIZE));
      const to = index * BLOCK_SIZE + (slot % BLOCK_SIZE);
      if (index >= 0 && to < mine.length) point(to);
    });

    function place() {
      const mine = cache.sequences.get(chosen);
      const index = Math.floor(token / BLOCK_SIZE);
      const slot = slotOf(mine, token);
      return { mine, index, slot, block: mine.blocks[index], at: token % BLOCK_SIZE };
    }
    function sentence() {
      if (chosen === undefined) return `${said} No sequence is left.`.trim();
      const { index, block, at, slot } = place();
      return `${said} Token ${token} of sequence ${chosen}: block_table[${index}] is ${block}, place ${at}, slot ${slot}. Its K begins at byte ${number(slot * SLOT_BYTES)} of the layer.`.trim();
    }

    function update() {
      const none = chosen === undefined;
      for (const node of [one, many, free]) node.setAttribute("aria-disabled", none);
      fork.setAttribute("aria-disabled", none || cache.sequences.size === MOST);
      fresh.setAttribute("aria-disabled", cache.sequences.size === MOST);
      who.replaceChildren(html("span", {}, "sequence"), ...[...cache.sequences.keys()].map((sequence) => {
        const radio = html("input", { type: "radio", name: "block-table", value: sequence });
        radio.checked = sequence === chosen;
        radio.addEventListener("change", () => { said = ""; slots = []; choose(sequence); update(); who.querySelector(":checked").focus(); });
        return html("label", { class: "fig-radio" }, radio, html("span", {}, String(sequence)));
      }));
      const list = (rows) => rows.flatMap(([key, value]) => [html("dt", {}, key), html("dd", { class: "strong" }, String(value))]);
      const fact = none ? undefined : place();
      where.replaceChildren(...list([
        ["token", none ? "–" : `${token} of ${words(fact.mine.length, "token")}`],
        ["block_table", none ? "[]" : `[${fact.mine.blocks.join(", ")}]`],
        ["slot", none ? "–" : `${fact.block} · ${BLOCK_SIZE} + ${fact.at} = ${fact.slot}`],
        ["byte of its K", none ? "–" : number(fact.slot * SLOT_BYTES)],
      ]));
      pool.replaceChildren(...list([
        ["slot_mapping of this append", slots.length > 6 ? `[${slots[0]}, …, ${slots.at(-1)}]` : `[${slots.join(", ")}]`],
        ["blocks in use", `${BLOCKS - cache.free.length} of ${BLOCKS}`],
        ["free, the next one first", cache.free.length > 5 ? `${cache.free.slice(-5).reverse().join(", ")}, …` : [...cache.free].reverse().join(", ") || "none"],
        ["shared blocks", cache.users.filter((users) => users > 1).length],
      ]));
      map.node.setAttribute("aria-valuemax", none ? 0 : Math.max(0, fact.mine.length - 1));
      map.node.setAttribute("aria-valuenow", token);
      map.node.setAttribute("aria-valuetext", sentence());
      map.redraw();
      status.say(sentence());
    }

    /* The chosen sequence as it counts its tokens, and below it the memory, block by block. */
    function draw(width, node) {
      const mine = chosen === undefined ? { length: 0, blocks: [] } : cache.sequences.get(chosen);
      const box = (x, y, w, h, cls, more = {}) => svg("rect", { x, y, width: w, height: h, class: cls, ...more });
      const columns = width < 560 ? 3 : 6;
      const pitch = width / columns;
      const inner = pitch - 10;
      const cell = inner / BLOCK_SIZE;
      const now = chosen === undefined ? undefined : place();
      const rows = Math.max(1, Math.ceil(mine.blocks.length / columns));
      const memory = 22 + rows * 46 + 26;
      const at = (i, top, line) => [(i % columns) * pitch + 5, top + Math.floor(i / columns) * line];
      const centers = [];

      node.append(label(chosen === undefined ? "no sequence" : `sequence ${chosen}, in the order of its tokens`, 0, 13, "start", "small"));
      mine.blocks.forEach((block, i) => {
        const [x, y] = at(i, 22, 46);
        for (let p = 0; p < BLOCK_SIZE; p++) {
          const held = i * BLOCK_SIZE + p < mine.length;
          node.append(box(x + p * cell + 0.5, y, cell - 1, 20, held ? `tile ${tones.get(chosen)}` : "slot"));
        }
        if (now && now.index === i) {
          node.append(box(x + now.at * cell + 0.5, y, cell - 1, 20, "bt-mark"));
          centers.push([x + (now.at + 0.5) * cell, y + 20]);
        }
        node.append(label(`[${i}] → ${block}`, x + inner / 2, y + 35, "middle", now && now.index === i ? "small strong" : "small"));
      });

      node.append(label("the memory of one layer, block by block", 0, memory - 8, "start", "small"));
      for (let block = 0; block < BLOCKS; block++) {
        const [x, y] = at(block, memory, 50);
        const users = [...cache.sequences].filter(([, { blocks }]) => blocks.includes(block));
        const here = mine.blocks.includes(block);
        node.append(box(x - 3, y - 3, inner + 6, 28, here ? "bt-block mine" : "bt-block"));
        for (let p = 0; p < BLOCK_SIZE; p++) {
          const holds = users.filter(([, { length, blocks }]) => blocks.indexOf(block) * BLOCK_SIZE + p < length).map(([sequence]) => sequence);
          const lines = holds.length > 1 ? holds : holds.slice(0, 1);
          if (!lines.length) node.append(box(x + p * cell + 0.5, y, cell - 1, 22, "slot"));
          lines.forEach((sequence, i) => {
            const h = 22 / lines.length;
            node.append(box(x + p * cell + 0.5, y + i * h, cell - 1, h, `tile ${tones.get(sequence)}`));
          });
          node.append(box(x + p * cell, y, cell, 22, "hit", { "data-slot": block * BLOCK_SIZE + p }));
        }
        if (now && now.block === block) {
          node.append(box(x + now.at * cell + 0.5, y, cell - 1, 22, "bt-mark"));
          centers.push([x + (now.at + 0.5) * cell, y]);
        }
        const whose = ["free", `sequence ${users[0]?.[0]}`][users.length] ?? `${users.length} sequences`;
        node.append(label(`${block}: ${whose}`, x + inner / 2, y + 39, "middle", here ? "small strong" : "small"));
      }
      if (centers.length === 2) node.append(svg("path", { d: `M${centers[0].join(" ")}L${centers[1].join(" ")}`, class: "thread" }));
      return memory + Math.ceil(BLOCKS / columns) * 50 - 4;
    }
    start();
    update();
  }

  function label(text, x, y, anchor, cls = "") {
    return svg("text", { x, y, "text-anchor": anchor, class: cls }, String(text));
  }

  define("block-table", build);
})();
