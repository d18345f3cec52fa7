"use strict";
(() => {
  const json = (id) => JSON.parse(document.getElementById(id).textContent);
  const partners = json("dark-colors");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const options = { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"], displayModeBar: "hover" };
  let printing = false;

  // A figure is stored in its light colours; on a dark screen every colour is replaced by its partner.
  const themed = (value, isColor) => {
    if (typeof value === "string") return isColor ? partners[value] || value : value;
    if (Array.isArray(value)) return value.map((item) => themed(item, isColor));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, themed(item, /color$/i.test(key))]));
  };

  // What the reader switched on and off stays so when the axis or the theme changes.
  const switched = (div) => new Map((div.data || []).map((trace) => [trace.legendgroup, trace.visible === undefined ? true : trace.visible]));

  const draw = (div) => {
    const axis = div.dataset.axes === undefined ? "" : "-" + document.querySelector("input[name=axis]:checked").value;
    const stored = json("figure-" + div.dataset.figure + axis);
    const figure = dark.matches && !printing ? themed(stored, false) : stored;
    const kept = switched(div);
    for (const trace of figure.data) if (trace.legendgroup && kept.has(trace.legendgroup)) trace.visible = kept.get(trace.legendgroup);
    figure.layout.autosize = true;
    if (printing) figure.layout.width = 680;
    return Plotly.react(div, figure.data, figure.layout, options);
  };

  const figures = [...document.querySelectorAll("[data-figure]")];
  const drawAll = () => Promise.all(figures.map(draw));

  for (const input of document.querySelectorAll("input[name=axis]")) {
    input.addEventListener("change", () => figures.filter((div) => div.dataset.axes !== undefined).forEach(draw));
  }
  dark.addEventListener("change", drawAll);
  window.addEventListener("beforeprint", () => {
    printing = true;
    for (const details of document.querySelectorAll("details")) details.open = true;
    drawAll();
  });
  window.addEventListener("afterprint", () => { printing = false; drawAll(); });
  drawAll().then(() => { document.body.dataset.ready = "true"; });
})();
