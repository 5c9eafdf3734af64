/* A block of a quantised KV cache, byte by byte: where codes, scales and padding lie in each format and layout. The data are
   chapters/ch10_quantized_kv/figures/cache_layouts.json, which is written from KVCacheFormat. */
(() => {
  const { define, html, svg, canvas, speaker, step: stepped } = window.Figures;
  const LAYOUTS = { token_interleaved: "token by token", block_wide: "codes, then scales" };
  const NUMBERS = { e4m3: "E4M3", e2m1: "E2M1", ue8m0: "UE8M0", float32: "fp32" };
  const FIRST = { row: 21, byte: 40 };
  const LINE = 32; // bytes in a line of the record: a sector

  function build(root, data) {
    const names = [...new Set(data.formats.map((one) => one.name))];
    const state = { name: names[0], layout: "token_interleaved", ...FIRST };
    const status = speaker();
    const form = () => data.formats.find((one) => one.name === state.name && one.layout === state.layout);
    const rows = data.block_size * data.heads;
    const scaleWidth = (of) => of.scale_bytes / (data.head_dim / of.group);
    const perByte = (of) => data.head_dim / of.data_bytes;
    const perGroup = (of) => of.group / perByte(of); // bytes of codes that share a scale

    const radios = (name, text, options, checked, pick) => html("div", { class: "fig-buttons", role: "radiogroup", "aria-label": text },
      html("span", {}, text), ...options.map(([value, shown]) => {
        const radio = html("input", { type: "radio", name, value });
        radio.checked = value === checked;
        radio.addEventListener("change", () => { pick(value); update(); });
        return html("label", { class: "fig-radio" }, radio, html("span", {}, shown));
      }));
    const format = radios("cl-format", "format", names.map((name) => [name, name]), state.name, (name) => { state.name = name; });
    const layout = radios("cl-layout", "layout", Object.entries(LAYOUTS), state.layout, (one) => { state.layout = one; });
    const block = canvas({ class: "cl-block", tabindex: 0, role: "slider", "aria-label": "Row of the block: a head of a token", "aria-valuemin": 0, "aria-valuemax": rows - 1 }, drawBlock);
    const record = canvas({ class: "cl-record", tabindex: 0, role: "slider", "aria-label": "Byte of the row", "aria-valuemin": 0 }, drawRecord);
    const facts = html("dl", { class: "fig-facts" });
    const caption = html("p", { class: "fig-label" });
    root.append(format, layout, block.node, caption, record.node, facts, status.node);

    /* The bytes of a row in the order in which they are drawn: codes, scales, and what pads its record. */
    function bytesOf(of) {
      const padding = state.layout === "token_interleaved" ? of.data_row_stride - of.data_bytes - of.scale_bytes : 0;
      return of.data_bytes + of.scale_bytes + padding;
    }
    function kindOf(of, byte) {
      return byte < of.data_bytes ? "codes" : byte < of.data_bytes + of.scale_bytes ? "scales" : "padding";
    }
    function addressOf(of, byte) {
      if (byte < of.data_bytes) return state.row * of.data_row_stride + byte;
      return of.scale_offset + state.row * of.scale_row_stride + byte - of.data_bytes;
    }
    const groupOf = (of, byte) => (byte < of.data_bytes ? Math.floor(byte / perGroup(of)) : Math.floor((byte - of.data_bytes) / scaleWidth(of)));

    function wordsOf(of, byte) {
      const kind = kindOf(of, byte);
      if (kind === "padding") return "padding, so that the next record begins at a multiple of 16 bytes";
      const group = groupOf(of, byte);
      if (kind === "scales") return `of the ${NUMBERS[of.scales]} scale of elements ${group * of.group} to ${(group + 1) * of.group - 1}`;
      const first = byte * perByte(of);
      return perByte(of) === 1 ? `element ${first}, as ${NUMBERS[of.values]}, of scale ${group}` : `elements ${first} (lower half) and ${first + 1}, as ${NUMBERS[of.values]}, of scale ${group}`;
    }
    function sentence(of) {
      const [token, head] = [Math.floor(state.row / data.heads), state.row % data.heads];
      return `Token ${token} of the block, head ${head}: byte ${addressOf(of, state.byte).toLocaleString("en")} of ${of.block_bytes.toLocaleString("en")} is ${wordsOf(of, state.byte)}.`;
    }

    function update() {
      const of = form();
      state.byte = Math.min(state.byte, bytesOf(of) - 1);
      const [token, head] = [Math.floor(state.row / data.heads), state.row % data.heads];
      caption.textContent = `the row of token ${token}, head ${head}: ${LINE} bytes a line${state.layout === "block_wide" ? "; its scales lie elsewhere" : ""}`;
      facts.replaceChildren(...[
        ["the row's codes begin at byte", (state.row * of.data_row_stride).toLocaleString("en"), "cl-codes"],
        ["its scales at byte", addressOf(of, of.data_bytes).toLocaleString("en"), "cl-scales"],
        ["the chosen byte", addressOf(of, state.byte).toLocaleString("en"), "strong cl-byte"],
        ["a block", `${of.block_bytes.toLocaleString("en")} bytes`, "cl-bytes"],
        ["a token, K and V of 28 layers", `${(of.token_bytes / 1024).toFixed(2)} KiB`, "cl-token"],
        ["of a token in bf16", (of.token_bytes / data.bf16_token_bytes).toFixed(2), "strong cl-ratio"],
      ].flatMap(([key, text, cls]) => [html("dt", {}, key), html("dd", { class: cls }, text)]));
      const said = sentence(of);
      record.node.setAttribute("aria-valuemax", bytesOf(of) - 1);
      for (const [node, value] of [[block.node, state.row], [record.node, state.byte]]) {
        node.setAttribute("aria-valuenow", value);
        node.setAttribute("aria-valuetext", said);
      }
      block.redraw();
      record.redraw();
      status.say(said);
    }

    const walk = (picture, most, page, get, set) => picture.node.addEventListener("keydown", (event) => {
      const to = stepped(event.key, get(), 0, most(), page);
      if (to === undefined) return;
      event.preventDefault();
      set(to);
      update();
    });
    walk(block, () => rows - 1, data.heads, () => state.row, (to) => { state.row = to; });
    walk(record, () => bytesOf(form()) - 1, LINE, () => state.byte, (to) => { state.byte = to; });
    const hover = (picture, find) => {
      const point = (event) => { if (find(event, picture.node.getBoundingClientRect())) update(); };
      picture.node.addEventListener("pointerdown", point);
      picture.node.addEventListener("pointermove", point);
    };
    hover(record, (event, box) => {
      const column = Math.floor(((event.clientX - box.left) / box.width) * LINE);
      const byte = Math.floor((event.clientY - box.top - 2) / PITCH) * LINE + column;
      if (column < 0 || column >= LINE || byte < 0 || byte >= bytesOf(form()) || byte === state.byte) return false;
      state.byte = byte;
      return true;
    });
    hover(block, (event, box) => {
      const of = form();
      const line = Math.floor((event.clientY - box.top - ROOF) / BLOCK_PITCH);
      const byte = line * lineBytes(of) + ((event.clientX - box.left) / box.width) * lineBytes(of);
      const row = byte < of.scale_offset || state.layout === "token_interleaved" ? Math.floor(byte / of.data_row_stride) : Math.floor((byte - of.scale_offset) / of.scale_row_stride);
      if (line < 0 || row < 0 || row >= rows || row === state.row) return false;
      state.row = row;
      return true;
    });

    const [ROOF, BLOCK_PITCH, PITCH] = [20, 9, 17];
    const lineBytes = (of) => data.heads * of.data_row_stride; // a token's rows of codes

    /* The whole block, a line for the codes of each token. */
    function drawBlock(width, node) {
      const of = form();
      const line = lineBytes(of);
      const strip = (start, stop, cls, more = {}) => {
        for (let at = start; at < stop;) {
          const end = Math.min(stop, (Math.floor(at / line) + 1) * line);
          node.append(svg("rect", { x: ((at % line) / line) * width, y: ROOF + Math.floor(at / line) * BLOCK_PITCH, width: Math.max(((end - at) / line) * width, 0.4), height: BLOCK_PITCH - 1.5, class: cls, ...more }));
          at = end;
        }
      };
      strip(0, of.block_bytes, "cl-padding");
      for (let row = 0; row < rows; row++) {
        const chosen = row === state.row ? "chosen" : row % 2 ? "odd" : "";
        const [codes, scales] = [row * of.data_row_stride, of.scale_offset + row * of.scale_row_stride];
        strip(codes, codes + of.data_bytes, `cl-codes ${chosen}`, { "data-row": row, "data-start": codes });
        strip(scales, scales + of.scale_bytes, `cl-scales ${chosen}`, { "data-row": row, "data-start": scales });
      }
      node.append(label(`a block: ${data.block_size} tokens of ${data.heads} heads, ${of.block_bytes.toLocaleString("en")} bytes`, 0, 12));
      return ROOF + Math.ceil(of.block_bytes / line) * BLOCK_PITCH + 2;
    }

    function drawRecord(width, node) {
      const of = form();
      const wide = width / LINE;
      for (let byte = 0; byte < bytesOf(of); byte++) {
        const kind = kindOf(of, byte);
        const group = kind === "padding" ? -1 : groupOf(of, byte);
        const mine = group >= 0 && kindOf(of, state.byte) !== "padding" && group === groupOf(of, state.byte);
        const tone = byte === state.byte ? "chosen" : mine ? "mate" : "";
        const line = Math.floor(byte / LINE);
        node.append(svg("rect", { x: (byte % LINE) * wide + 0.5, y: 2 + line * PITCH, width: wide - 1, height: PITCH - 3, class: `cell cl-${kind} ${tone}`, "data-byte": byte, "data-address": addressOf(of, byte) }));
      }
      const lines = Math.ceil(bytesOf(of) / LINE);
      const x = ((bytesOf(of) % LINE || LINE) + 0.6) * wide;
      if (bytesOf(of) % LINE) node.append(label(state.layout === "block_wide" ? "scales" : "scales, padding", x, 2 + (lines - 1) * PITCH + 12));
      return 2 + lines * PITCH + 2;
    }
    update();
  }

  function label(text, x, y) {
    return svg("text", { x, y, class: "small" }, text);
  }

  define("cache-layouts", build);
})();
