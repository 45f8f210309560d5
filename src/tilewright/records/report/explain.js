// Draws the charts and opens the chosen kernel; lines open by themselves, they are <details>. No request leaves this page.
(() => {
  "use strict";
  document.documentElement.classList.add("js");
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const articles = [...document.querySelectorAll("article.view")];
  const tabs = [...document.querySelectorAll(".views button")];
  const drawn = new Map(); // plot element → its Vega view
  let current = 0;

  async function draw(article) {
    const theme = dark.matches ? "dark" : "light";
    if (article.dataset.drawn === theme) return;
    article.dataset.drawn = theme;
    await Promise.all([...article.querySelectorAll("figure.chart")].map(async (figure) => {
      const plot = figure.querySelector(".plot");
      const spec = structuredClone(data.views[Number(article.dataset.view)][figure.dataset.chart]);
      spec.height ??= figure.dataset.chart === "roofline" ? (plot.clientWidth < 600 ? 300 : 400) : 240;
      drawn.get(plot)?.finalize();
      // ast: expressions are interpreted, for the page's policy forbids eval.
      const options = {
        ast: true, renderer: "svg", actions: false, config: data.config[theme], tooltip: { disableDefaultStyle: true },
      };
      drawn.set(plot, (await vegaEmbed(plot, spec, options)).view);
      part(plot);
    }));
  }

  // Labels are placed before the chart's width is known: on a phone they may meet. Each moves up or down to the nearest
  // free place inside the chart; its halo, which is the text before it, moves along.
  function part(plot) {
    const texts = [...plot.querySelectorAll(".mark-text.role-mark text")];
    const edges = plot.getBoundingClientRect();
    const placed = [...plot.querySelectorAll(".mark-symbol path")].map((mark) => mark.getBoundingClientRect());
    for (let i = 0; i + 1 < texts.length; i += 2) {
      const { left, right, top, bottom } = texts[i + 1].getBoundingClientRect();
      const free = (dy) => top + dy >= edges.top && bottom + dy <= edges.bottom
        && !placed.some((box) => left < box.right && box.left < right && top + dy < box.bottom && box.top < bottom + dy);
      const dy = [0, 8, -8, 16, -16, 24, -24, 32, -32, 40, -40, 56, -56, 72, -72].find(free) ?? 0;
      placed.push({ left, right, top: top + dy, bottom: bottom + dy });
      if (dy) for (const text of texts.slice(i, i + 2)) text.setAttribute("transform", `translate(0,${dy}) ${text.getAttribute("transform")}`);
    }
  }

  function open(index) {
    current = index;
    for (const tab of tabs) tab.setAttribute("aria-pressed", String(Number(tab.dataset.view) === index));
    for (const article of articles) article.hidden = Number(article.dataset.view) !== index;
    return draw(articles[index]);
  }

  function chosen() {
    const target = document.getElementById(location.hash.slice(1));
    const index = articles.findIndex((article) => article.contains(target));
    return target && index >= 0 ? index : current;
  }

  for (const tab of tabs) tab.addEventListener("click", () => open(Number(tab.dataset.view)));
  addEventListener("hashchange", () => {
    open(chosen());
    document.getElementById(location.hash.slice(1))?.scrollIntoView(); // it may have been hidden
  });
  dark.addEventListener("change", () => open(current));
  open(chosen()).then(() => { document.documentElement.dataset.ready = "true"; });
})();
