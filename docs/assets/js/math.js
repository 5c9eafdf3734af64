/* Renders mathematics with the local KaTeX, on each page that the theme shows (document$ is its stream of pages). */
(() => {
  const delimiters = [
    { left: "\\[", right: "\\]", display: true },
    { left: "\\(", right: "\\)", display: false },
  ];

  /* A browser may break a line between a formula and the full stop after it, or the bracket before it. Both are wrapped
     with the formula into a box that does not break; inside, a break is offered where KaTeX allows one. */
  function keepTogether(formula) {
    const before = formula.previousSibling?.nodeType === Node.TEXT_NODE ? formula.previousSibling : null;
    const after = formula.nextSibling?.nodeType === Node.TEXT_NODE ? formula.nextSibling : null;
    const open = before?.data.match(/[(\[“±]$/)?.[0] ?? "";
    const close = after?.data.match(/^[^\s\w(\[“—–]+/)?.[0] ?? "";
    if (!open && !close) return;
    const box = document.createElement("span");
    box.className = "keep";
    formula.before(box);
    box.append(open, formula, close);
    if (open) before.data = before.data.slice(0, -open.length);
    if (close) after.data = after.data.slice(close.length);
    for (const part of [...formula.querySelectorAll(".katex-html > .base")].slice(1)) part.before(document.createElement("wbr"));
  }

  function render() {
    for (const element of document.querySelectorAll(".arithmatex:not(:has(.katex))")) {
      window.renderMathInElement(element, {
        delimiters,
        throwOnError: false,
        errorCallback: (message, error) => console.error(message, error),
      });
      if (element.matches("span")) keepTogether(element);
    }
    document.documentElement.dataset.math = "ready"; // the browser tests wait for this
  }
  if (window.document$) window.document$.subscribe(render);
  else document.addEventListener("DOMContentLoaded", render);
})();
