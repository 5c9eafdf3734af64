/* Draws Mermaid diagrams with the local library, which is loaded only by pages that have one, in the page's own colours. */
(() => {
  const here = document.currentScript.src;
  const flowchart = { nodeSpacing: 36, rankSpacing: 30, padding: 9 };
  let library;
  let drawing = Promise.resolve();

  function load() {
    library ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = new URL("../vendor/mermaid/mermaid.tiny.min.js", here);
      script.onload = () => resolve(window.mermaid);
      script.onerror = () => reject(new Error(`cannot load ${script.src}`));
      document.head.append(script);
    });
    return library;
  }

  function theme() {
    const style = getComputedStyle(document.body);
    const color = (name) => style.getPropertyValue(name).trim();
    return {
      background: color("--surface"),
      primaryColor: color("--surface"),
      primaryBorderColor: color("--q"),
      primaryTextColor: color("--ink"),
      secondaryColor: color("--paper"),
      tertiaryColor: color("--paper"),
      clusterBkg: color("--paper"),
      clusterBorder: color("--rule-strong"),
      lineColor: color("--w"),
      textColor: color("--ink"),
      edgeLabelBackground: color("--paper"),
      noteBkgColor: color("--surface"),
      noteTextColor: color("--ink"),
      noteBorderColor: color("--rule-strong"),
      fontSize: "15px",
    };
  }

  async function draw() {
    const nodes = [...document.querySelectorAll(".diagram")];
    if (!nodes.length) return;
    const mermaid = await load();
    const fontFamily = getComputedStyle(document.body).getPropertyValue("--sans");
    mermaid.initialize({ startOnLoad: false, securityLevel: "strict", theme: "base", themeVariables: theme(), fontFamily, flowchart });
    for (const [index, node] of nodes.entries()) {
      node.dataset.source ??= node.textContent;
      const { svg } = await mermaid.render(`diagram-${index}`, node.dataset.source);
      node.innerHTML = svg;
      const drawn = node.firstElementChild; // on a phone it scrolls rather than shrink its text below 12 px
      drawn.style.minWidth = `${0.8 * drawn.viewBox.baseVal.width}px`;
      node.classList.add("ready");
    }
  }

  // One after another: a change of scheme while a drawing is under way must not mix two themes.
  const queue = () => { drawing = drawing.then(draw).catch((error) => console.error(error)); };
  if (window.document$) window.document$.subscribe(queue);
  else document.addEventListener("DOMContentLoaded", queue);
  new MutationObserver(queue).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
})();
