// SPDX-License-Identifier: Apache-2.0
// Draws the charts in the page's colours, light or dark, and again where these or the room change.
"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)");
  const NARROW = 560;
  const PAPER = 680;

  // A colour is "@name": the value of the style's variable of that name. Text is never looked at.
  const isColour = (key) => key === "color" || key.endsWith("color");

  const painted = (value, key, style) => {
    if (typeof value === "string") {
      return isColour(key) && value.startsWith("@")
        ? style.getPropertyValue(`--${value.slice(1)}`).trim()
        : value;
    }
    if (Array.isArray(value)) return value.map((one) => painted(one, key, style));
    if (value === null || typeof value !== "object") return value;
    const made = {};
    for (const [name, one] of Object.entries(value)) made[name] = painted(one, name, style);
    return made;
  };

  // All points of a line have the same text, which the page holds once.
  const withHover = (trace) => {
    const { hoverruns: runs, ...rest } = trace;
    if (!runs) return trace;
    return { ...rest, hovertext: runs.texts.flatMap((text) => Array(runs.length).fill(text)) };
  };

  const layoutOf = (chart, width, style) => {
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const font = { family: style.getPropertyValue("--sans"), size: 12.5, color: colour("ink") };
    const axis = {
      automargin: true,
      gridcolor: colour("grid"),
      linecolor: colour("line"),
      tickcolor: colour("line"),
      zerolinecolor: colour("line"),
      tickfont: { color: colour("muted"), size: 12 },
      nticks: width < NARROW ? 5 : 9,
    };
    const own = painted(chart.layout, "", style);
    const layout = {
      ...own,
      font,
      width,
      showlegend: false,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: width < NARROW ? 44 : 60, r: 12, t: 14, b: 44, ...own.margin },
      dragmode: touch.matches ? false : "zoom",
      hoverlabel: {
        align: "left",
        bgcolor: colour("surface"),
        bordercolor: colour("line"),
        font: { ...font, size: 12.5 },
      },
    };
    for (const name of ["xaxis", "yaxis", "yaxis2"]) {
      if (!own[name] && name === "yaxis2") continue;
      const title = own[name]?.title;
      layout[name] = { ...axis, ...own[name] };
      if (title) {
        layout[name].title = {
          ...title,
          standoff: 8,
          font: { color: colour("muted"), size: 12.5 },
        };
      }
    }
    return layout;
  };

  const config = { displayModeBar: false, responsive: false, scrollZoom: false };

  const drawOne = (chart, width) => {
    const style = getComputedStyle(document.documentElement);
    const place = document.getElementById(`chart-${chart.name}`);
    const data = chart.data.map((trace) => painted(withHover(trace), "", style));
    const room = Math.max(width || place.clientWidth, 200);
    const layout = { ...layoutOf(chart, room, style), height: place.clientHeight };
    return Plotly.react(place, data, layout, config);
  };

  const draw = (width) =>
    Promise.all(charts.map((chart) => drawOne(chart, width))).then(() => {
      document.documentElement.dataset.charts = "drawn";
    });

  let due = 0;
  let drawnAt = 0;
  const later = () => {
    if (document.documentElement.clientWidth === drawnAt) return;
    clearTimeout(due);
    due = setTimeout(() => {
      drawnAt = document.documentElement.clientWidth;
      draw();
    }, 120);
  };

  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      let word = "Copied";
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        getSelection().selectAllChildren(code); // the browser forbids it: ready for Ctrl-C
        word = "Selected";
      }
      button.textContent = word;
      setTimeout(() => {
        button.textContent = "Copy";
      }, 1600);
    });
  }

  // On paper all but long lists is open, and charts are light and as wide as the paper.
  let closed = [];
  addEventListener("beforeprint", () => {
    document.documentElement.classList.add("paper");
    closed = [...document.querySelectorAll("details:not([open]):not(.long)")];
    for (const one of closed) one.open = true;
    draw(PAPER);
  });
  addEventListener("afterprint", () => {
    for (const one of closed) one.open = false;
    document.documentElement.classList.remove("paper");
    draw();
  });

  dark.addEventListener("change", () => draw());
  addEventListener("resize", later);
  drawnAt = document.documentElement.clientWidth;
  draw();
})();
