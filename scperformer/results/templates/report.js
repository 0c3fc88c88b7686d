// The figures, the map of the cells and the tables of the report. User texts become text nodes, or are escaped for plotly.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const base = {
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: "#1d2733" },
    margin: { l: 10, r: 24, t: 30, b: 44 },
    paper_bgcolor: "#fff",
    plot_bgcolor: "#fff",
    hoverlabel: { align: "left", bgcolor: "#fff", bordercolor: "#8793a0", font: { color: "#1d2733" } },
  };
  const element = (tag, properties = {}, children = []) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const marks = { circle: "●", diamond: "◆", square: "■", cross: "✚", x: "✖", "triangle-up": "▲" };
  const words = (text) => new DOMParser().parseFromString(text.replace(/<br>/g, "; "), "text/html").body.textContent;
  // The bar of a figure has a button that saves it as SVG, with a legend inside.
  const config = (filename, buttons = []) => {
    const save = ({ data, layout, offsetWidth: width, offsetHeight: height }) => {
      const whole = { data, layout: { ...layout, showlegend: data.length > 1 && filename !== "confidence" } };
      Plotly.downloadImage(whole, { format: "svg", filename, width, height });
    };
    const button = { name: "save", title: "Save as SVG", icon: Plotly.Icons.camera, click: save };
    return { responsive: true, displaylogo: false, scrollZoom: false, modeBarButtons: [[...buttons, button]] };
  };
  // The legend is outside the figure, which keeps its size on a small screen. A touch tells what a pointer would show.
  const describe = (canvas) => {
    const figure = canvas.closest("figure");
    const said = figure.querySelector(".said");
    said.textContent = "";
    canvas.removeAllListeners("plotly_click");
    canvas.on("plotly_click", ({ points: [{ hovertext, text }] }) => (said.textContent = words(hovertext ?? text)));
    const entries = canvas.data.map(({ name, meta, marker: { color, symbol } }, place) => {
      const mark = element("span", { className: "mark", textContent: marks[symbol ?? meta], style: `color:${color}` });
      const button = element("button", { type: "button", ariaPressed: "true" }, [mark, ` ${words(name)}`]);
      button.onclick = () => {
        const isShown = button.ariaPressed === "true";
        button.ariaPressed = String(!isShown);
        Plotly.restyle(canvas, { visible: isShown ? "legendonly" : true }, [place]);
      };
      return button;
    });
    figure.querySelector(".legend").replaceChildren(...(canvas.data.length > 1 || canvas.data[0].meta ? entries : []));
  };

  for (const { name, data: traces, layout, width } of data.figures) {
    const canvas = document.querySelector(`#figure-${name} .canvas`);
    canvas.style.minWidth = `${width}px`;
    canvas.style.height = `${layout.height}px`;
    Plotly.newPlot(canvas, traces, { ...base, ...layout }, config(name));
    if (name.startsWith("composition")) describe(canvas);
  }

  // Names of groups in the places of their cells, the largest first. A name that would cover an earlier one moves up or
  // down, or is left out: the legend has it.
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `${base.font.size}px ${base.font.family}`;
  const [high, offsets] = [18, [0, 1, -1, 2, -2]];
  const placeNames = (canvas, names) => {
    const { xaxis, yaxis } = canvas._fullLayout;
    const taken = [];
    const annotations = [];
    for (const { x, y, text } of names) {
      const half = pen.measureText(words(text)).width / 2 + 4;
      const [left, top] = [xaxis.l2p(x), yaxis.l2p(y)];
      if (left < 0 || top < 0 || left > xaxis._length || top > yaxis._length) continue;
      const centre = Math.max(half, Math.min(xaxis._length - half, left));
      const isFree = (place) => place > high / 2 && place < yaxis._length - high / 2
        && taken.every((box) => Math.abs(box.centre - centre) > box.half + half || Math.abs(box.place - place) > high);
      const place = offsets.map((step) => top + step * high).find(isFree);
      if (place === undefined) continue;
      taken.push({ centre, half, place });
      const shift = { xshift: centre - left, yshift: top - place };
      annotations.push({ x, y, text, ...shift, showarrow: false, borderpad: 0, bgcolor: "rgba(255,255,255,0.72)", captureevents: false });
    }
    return Plotly.relayout(canvas, { annotations });
  };

  // A map: a trace for each value of a column of texts, or one with a colour bar for a column of numbers.
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const drawMap = async (map, column) => {
    const value = ({ values, codes, numbers }, i) => (codes ? values[codes[i]].name : (numbers[i] ?? "missing"));
    const about = (i) => [escaped(map.cells[i]), ...map.columns.map((each) => `${each.name}: ${value(each, i)}`)].join("<br>");
    const size = Math.min(7, Math.max(3, 420 / Math.sqrt(map.x.length)));
    const points = (cells, name, marker) => ({
      type: "scattergl",
      mode: "markers",
      name,
      x: cells.map((i) => map.x[i]),
      y: cells.map((i) => map.y[i]),
      text: cells.map(about),
      hoverinfo: "text",
      marker: { size, line: { width: 0 }, ...marker },
    });
    const all = [...map.x.keys()];
    let traces = [];
    let names = [];
    if (column.numbers) {
      // Cells with low confidence, or with high novelty, are drawn on top.
      const sign = column.name === "Confidence" ? -1 : 1;
      const cells = all.sort((i, j) => sign * (column.numbers[i] - column.numbers[j]));
      const bar = { title: { text: column.name }, thickness: 12, len: 0.6 };
      const marker = { color: cells.map((i) => column.numbers[i]), cmin: 0, cmax: 1, colorscale: column.scale, colorbar: bar };
      traces = [points(cells, column.name, marker)];
    } else {
      const groups = column.values.map(() => []);
      for (const i of all) groups[column.codes[i]].push(i);
      // Rare values are drawn on top of the others, unknown cells on top of all; the legend has them in this order, too.
      const rank = (code) => (column.values[code].name === data.unknown ? -1 : groups[code].length);
      const order = [...groups.keys()].sort((a, b) => rank(b) - rank(a));
      const median = (numbers) => numbers.sort((a, b) => a - b)[Math.floor(numbers.length / 2)];
      traces = order.map((code) => {
        const { name, colour: color, symbol } = column.values[code];
        return points(groups[code], `${name} (${groups[code].length.toLocaleString()})`, { color, symbol });
      });
      names = order.filter((code) => column.name === "Call" && rank(code) > 0).map((code) => ({
        x: median(groups[code].map((i) => map.x[i])),
        y: median(groups[code].map((i) => map.y[i])),
        text: column.values[code].name,
      }));
    }
    const axis = { visible: false, zeroline: false };
    const layout = { ...base, margin: { l: 8, r: 8, t: 30, b: 8 }, xaxis: axis, yaxis: { ...axis }, hovermode: "closest" };
    const canvas = document.querySelector(`#figure-map${map.suffix} .canvas`);
    const buttons = ["zoomIn2d", "zoomOut2d", "resetScale2d"];
    await Plotly.react(canvas, traces, { ...layout, showlegend: false, uirevision: "map" }, config("map", buttons));
    describe(canvas);
    canvas.removeAllListeners("plotly_relayout");
    await placeNames(canvas, names);
    canvas.on("plotly_relayout", (changed) => "annotations" in changed || placeNames(canvas, names));
  };
  for (const map of data.maps) {
    const options = map.columns.map(({ name }, place) => element("option", { value: place, textContent: name }));
    const colour = element("select", { id: `map-colour${map.suffix}`, onchange: () => drawMap(map, map.columns[colour.value]) }, options);
    document.getElementById(`map-tools${map.suffix}`).append(element("label", {}, ["Colour by ", colour]));
    drawMap(map, map.columns[0]);
  }

  // Figures are as wide as the window, so they are scaled down for printing.
  const canvases = [...document.querySelectorAll(".canvas")];
  addEventListener("beforeprint", () => canvases.forEach((canvas) => (canvas.style.zoom = Math.min(1, 680 / canvas.offsetWidth))));
  addEventListener("afterprint", () => canvases.forEach((canvas) => (canvas.style.zoom = "")));

  // Tables: a click on a title sorts them, and they can be saved as CSV.
  const shown = (cell) => cell.textContent.replace(/^[●◆■✚✖▲]\s/, "").trim();
  const number = (cell) => Number(cell.dataset.value ?? "-Infinity");
  const compare = new Intl.Collator(undefined, { numeric: true }).compare;
  // Spreadsheets run texts with these first characters as formulas.
  const quoted = (text) => `"${(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text).replace(/"/g, '""')}"`;
  for (const box of document.querySelectorAll(".table")) {
    const table = box.querySelector("table");
    const body = table.tBodies[0];
    const titles = [...table.tHead.rows[0].cells];
    titles.forEach((title, column) => {
      const isNumber = title.classList.contains("number");
      const button = element("button", { type: "button" }, [...title.childNodes]);
      title.append(button);
      button.onclick = () => {
        // The first click on a column of numbers shows the largest numbers.
        const isUp = title.ariaSort ? title.ariaSort === "descending" : !isNumber;
        titles.forEach((other) => (other.ariaSort = other === title ? (isUp ? "ascending" : "descending") : null));
        const sign = isUp ? 1 : -1;
        const order = ([a, b]) => (isNumber ? number(a) - number(b) || 0 : compare(shown(a), shown(b)));
        body.append(...[...body.rows].sort((row, other) => sign * order([row.cells[column], other.cells[column]])));
      };
    });
    const line = (row) => [...row.cells].map((cell) => cell.dataset.value ?? quoted(shown(cell))).join(",");
    const csv = element("button", { type: "button", textContent: "CSV" });
    csv.setAttribute("aria-label", `Download ${box.dataset.name} as CSV`);
    csv.onclick = () => {
      const text = [...table.rows].map((row) => `${line(row)}\r\n`).join("");
      const href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
      element("a", { href, download: `${box.id.replace("-table", "")}.csv` }).click();
    };
    box.querySelector("h3").append(" ", csv);
  }
})();
