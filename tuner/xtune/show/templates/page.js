// SPDX-License-Identifier: Apache-2.0
"use strict";
(() => {
  const PAPER_PX = 680;
  const root = document.documentElement;
  const charts = JSON.parse(document.getElementById("charts").textContent);

  // Charts take their colours from the style, which is light or dark as the browser asks.
  const template = () => {
    const style = getComputedStyle(root);
    const [ink, line, surface, family] = ["ink", "line", "surface", "sans"].map((name) =>
      style.getPropertyValue(`--${name}`).trim(),
    );
    const axis = { automargin: true, gridcolor: line, linecolor: line, zerolinecolor: line };
    const layout = {
      font: { color: ink, family, size: 12.5 },
      hoverlabel: { align: "left", bgcolor: surface, bordercolor: line, font: { color: ink } },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      xaxis: axis,
      yaxis: axis,
    };
    return { layout, data: { bar: [{ error_x: { color: ink } }] } };
  };

  const draw = async (width) => {
    for (const { name, data, layout } of structuredClone(charts)) {
      const place = document.getElementById(`chart-${name}`);
      const own = { ...layout, template: template(), width: width || place.clientWidth };
      await Plotly.react(place, data, own, { displayModeBar: false });
    }
    root.dataset.charts = "drawn";
  };

  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code); // the browser forbids copying: ready for Ctrl-C
        button.textContent = "Selected";
      }
    });
  }

  let width = root.clientWidth;
  addEventListener("resize", () => {
    if (root.clientWidth !== width) draw();
    width = root.clientWidth;
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
  addEventListener("beforeprint", () => {
    root.classList.add("paper");
    for (const one of document.querySelectorAll("details")) one.open = true;
    draw(PAPER_PX);
  });
  addEventListener("afterprint", () => {
    root.classList.remove("paper");
    draw();
  });
  draw();
})();
