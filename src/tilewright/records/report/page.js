// Draws the charts, and lets the reader pick kernels, views and what the table shows. No request leaves this page.
(() => {
  "use strict";
  document.documentElement.classList.add("js");
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const articles = [...document.querySelectorAll("article.view")];
  const views = new Map(); // plot element → its Vega view
  let picked = []; // kernels that are singled out
  let shown = []; // kernels that are drawn beside the emphasised ones
  let current = 0;

  function height(name, width) {
    if (name === "gflops") return width < 600 ? 300 : 420;
    return width < 600 ? 280 : 320;
  }

  async function draw(article) {
    const view = data.views[Number(article.dataset.view)];
    const config = data.config[dark.matches ? "dark" : "light"];
    await Promise.all([...article.querySelectorAll("figure.chart")].map(async (figure) => {
      const name = figure.dataset.chart;
      const plot = figure.querySelector(".plot");
      const spec = structuredClone(view.charts[name]);
      spec.datasets = { ...spec.datasets, cells: view.cells };
      spec.height ??= height(name, plot.clientWidth);
      views.get(plot)?.finalize();
      // ast: expressions are interpreted, for the page's policy forbids eval.
      const options = { ast: true, renderer: "svg", actions: false, config, tooltip: { disableDefaultStyle: true } };
      const result = await vegaEmbed(plot, spec, options);
      views.set(plot, result.view);
      result.view.addEventListener("mouseover", (event, item) => {
        if (item?.datum?.kernel) emphasise([...picked, item.datum.kernel]);
      });
      result.view.addEventListener("mouseout", () => emphasise(picked));
      await highlight(result.view, picked);
    }));
    article.dataset.drawn = dark.matches ? "dark" : "light";
  }

  function highlight(view, kernels) {
    return view.signal("picked", kernels).signal("shown", [...shown, ...kernels]).runAsync();
  }

  function emphasise(kernels) {
    for (const [plot, view] of views) {
      if (plot.isConnected && !plot.closest("[hidden]")) highlight(view, kernels);
    }
    for (const item of document.querySelectorAll(".ladder li, .table tbody tr")) {
      item.classList.toggle("dim", kernels.length > 0 && !kernels.includes(item.dataset.kernel));
    }
  }

  // Pressing an emphasised kernel singles it out; pressing another one draws it.
  function choose(kernels, others) {
    picked = kernels;
    shown = others;
    for (const legend of document.querySelectorAll(".legend")) {
      legend.classList.toggle("picking", picked.length > 0);
      legend.querySelector(".all").hidden = picked.length + shown.length === 0;
      for (const button of legend.querySelectorAll("[data-kernel]")) {
        button.setAttribute("aria-pressed", String([...picked, ...shown].includes(button.dataset.kernel)));
      }
    }
    emphasise(picked);
  }

  function toggled(kernels, kernel) {
    return kernels.includes(kernel) ? kernels.filter((k) => k !== kernel) : [...kernels, kernel];
  }

  function press(buttons, chosen) {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button === chosen));
  }

  function open(index) {
    current = index;
    for (const article of articles) article.hidden = Number(article.dataset.view) !== index;
    const article = articles[index];
    const theme = dark.matches ? "dark" : "light";
    if (article.dataset.drawn !== theme) return draw(article);
    emphasise(picked);
    return Promise.resolve();
  }

  for (const legend of document.querySelectorAll(".legend")) {
    for (const button of legend.querySelectorAll("[data-kernel]")) {
      const kernel = button.dataset.kernel;
      button.addEventListener("click", () => {
        if (button.classList.contains("other")) choose(picked, toggled(shown, kernel));
        else choose(toggled(picked, kernel), shown);
      });
      button.addEventListener("pointerenter", (event) => {
        if (event.pointerType === "mouse") emphasise([...picked, kernel]);
      });
      button.addEventListener("pointerleave", () => emphasise(picked));
    }
    legend.querySelector(".all").addEventListener("click", () => choose([], []));
  }
  const tabs = [...document.querySelectorAll(".views button")];
  for (const tab of tabs) {
    tab.addEventListener("click", () => { press(tabs, tab); open(Number(tab.dataset.view)); });
  }
  for (const section of document.querySelectorAll("section.table")) {
    const choices = [...section.querySelectorAll(".show button")];
    for (const choice of choices) {
      choice.addEventListener("click", () => {
        press(choices, choice);
        section.querySelector("table").dataset.show = choice.dataset.show;
      });
    }
  }
  dark.addEventListener("change", () => open(current));
  open(0).then(() => { document.documentElement.dataset.ready = "true"; });
})();
