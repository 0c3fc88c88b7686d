// The figures, the map of the cells and the tables of the report. User texts become text nodes, or are escaped for plotly.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  // Figures have the colours of the page: light or dark, as the reader's system has it. Paper is light.
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  let isDark = scheme.matches;
  const colour = (value) => {
    const [hex, alpha] = [value.slice(0, 7), value.slice(7)];
    return !isDark ? value : value === "#fff" ? "#15191f" : value.startsWith("#") ? (data.dark[hex] ?? hex) + alpha : value;
  };
  const inSpans = (text) => text.replace(/(<span style="color:)(#\w{6})/g, (_, start, hex) => start + colour(hex));
  const themed = (value, key = "") => {
    if (Array.isArray(value)) return value.map((part) => themed(part, key));
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, themed(part, name)]));
    if (typeof value !== "string") return value;
    return /color/.test(key) ? colour(value) : key === "ticktext" ? inSpans(value) : value;
  };
  const base = () => {
    const [ink, line] = isDark ? ["#e3e8ee", "#3a434e"] : ["#1d2733", "#dde3e9"];
    const paper = colour("#fff");
    const font = { family: getComputedStyle(document.body).fontFamily, size: 13, color: ink };
    const hoverlabel = { align: "left", bgcolor: paper, bordercolor: "#8793a0", font: { color: ink } };
    return { font, margin: { l: 10, r: 24, t: 30, b: 44 }, paper_bgcolor: paper, plot_bgcolor: paper, hoverlabel, template: { layout: { xaxis: { gridcolor: line }, yaxis: { gridcolor: line } } } };
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
      const whole = { data, layout: { ...layout, showlegend: data.length > 1 && !filename.startsWith("confidence") } };
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
    const entries = canvas.data.map(({ name, meta, visible, marker: { color, symbol } }, place) => {
      const mark = element("span", { className: "mark", textContent: marks[symbol ?? meta], style: `color:${color};--dark:${color}` });
      const button = element("button", { type: "button", ariaPressed: "true" }, [mark, ` ${words(name)}`]);
      button.onclick = () => {
        const isShown = button.ariaPressed === "true";
        button.ariaPressed = String(!isShown);
        Plotly.restyle(canvas, { visible: isShown ? "legendonly" : true }, [place]);
      };
      button.ariaPressed = String(visible !== "legendonly");
      return button;
    });
    figure.querySelector(".legend").replaceChildren(...(canvas.data.length > 1 || canvas.data[0].meta ? entries : []));
  };

  const drawFigures = () => {
    for (const { name, data: traces, layout, width } of data.figures) {
      const canvas = document.querySelector(`#figure-${name} .canvas`);
      canvas.style.minWidth = `${width}px`;
      canvas.style.height = `${layout.height}px`;
      Plotly.react(canvas, themed(traces), { ...base(), ...themed(layout) }, config(name));
      if (name.startsWith("composition")) describe(canvas);
    }
  };

  // Names of groups in the places of their cells, the largest first. A name that would cover an earlier one, or
  // cells of others rather than its own, moves up or down, or is left out: the legend has it. So is that of hidden cells.
  const pen = document.createElement("canvas").getContext("2d");
  const [high, offsets] = [18, [0, 1, -1, 2, -2]];
  const placeNames = (canvas, names) => {
    const { xaxis, yaxis, font } = canvas._fullLayout;
    pen.font = `${font.size}px ${font.family}`;
    const shown = canvas.data.map((trace, place) => ({ ...trace, place })).filter(({ visible }) => visible !== "legendonly");
    const points = shown.flatMap(({ place, x, y }) => x.map((value, i) => [place, xaxis.l2p(value), yaxis.l2p(y[i])]));
    const taken = [];
    const annotations = [];
    for (const { x, y, text, trace } of names.filter(({ trace }) => shown.some(({ place }) => place === trace))) {
      const half = pen.measureText(words(text)).width / 2 + 4;
      const [left, top] = [xaxis.l2p(x), yaxis.l2p(y)];
      if (left < 0 || top < 0 || left > xaxis._length || top > yaxis._length) continue;
      const centre = Math.max(half, Math.min(xaxis._length - half, left));
      const isOnOthers = (place) => {
        const under = points.filter(([, right, down]) => Math.abs(right - centre) < half && Math.abs(down - place) < high / 2);
        const own = under.filter(([of]) => of === trace).length;
        return under.length - own > Math.min(3 * own, canvas.data[trace].x.length);
      };
      const isFree = (place) => place > high / 2 && place < yaxis._length - high / 2
        && taken.every((box) => Math.abs(box.centre - centre) > box.half + half || Math.abs(box.place - place) > high)
        && !isOnOthers(place);
      const place = offsets.map((step) => top + step * high).find(isFree);
      if (place === undefined) continue;
      taken.push({ centre, half, place });
      const shift = { xshift: centre - left, yshift: top - place };
      annotations.push({ x, y, text, ...shift, showarrow: false, borderpad: 0, bgcolor: isDark ? "rgba(21,25,31,0.8)" : "rgba(255,255,255,0.72)", captureevents: false });
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
      const marker = { color: cells.map((i) => column.numbers[i]), cmin: 0, cmax: column.highest, colorscale: themed(column.scale, "colorscale"), colorbar: bar };
      traces = [points(cells, column.name, marker)];
    } else {
      const groups = column.values.map(() => []);
      for (const i of all) groups[column.codes[i]].push(i);
      // Rare values are drawn on top of the others, unknown cells on top of all; the legend has them in this order, too.
      const rank = (code) => (column.values[code].name === data.unknown ? -1 : groups[code].length);
      const order = [...groups.keys()].sort((a, b) => rank(b) - rank(a));
      traces = order.map((code) => {
        const { name, colour: hex, symbol } = column.values[code];
        return points(groups[code], `${name} (${groups[code].length.toLocaleString()})`, { color: colour(hex), symbol });
      });
      names = order.map((code, trace) => ({ ...column.values[code], trace })).filter(({ name, place }) => place && name !== data.unknown)
        .map(({ name: text, place: [x, y], trace }) => ({ x, y, text, trace }));
    }
    const axis = { visible: false, zeroline: false };
    const layout = { ...base(), margin: { l: 8, r: 8, t: 30, b: 8 }, xaxis: axis, yaxis: { ...axis }, hovermode: "closest" };
    const canvas = document.querySelector(`#figure-map${map.suffix} .canvas`);
    const buttons = ["zoomIn2d", "zoomOut2d", "resetScale2d"];
    await Plotly.react(canvas, traces, { ...layout, showlegend: false, uirevision: "map" }, config("map", buttons));
    describe(canvas);
    canvas.removeAllListeners("plotly_relayout");
    canvas.removeAllListeners("plotly_restyle");
    await placeNames(canvas, names);
    canvas.on("plotly_relayout", (changed) => "annotations" in changed || placeNames(canvas, names));
    canvas.on("plotly_restyle", () => placeNames(canvas, names));
  };
  for (const map of data.maps) {
    const options = map.columns.map(({ name }, place) => element("option", { value: place, textContent: words(name) }));
    const choice = element("select", { id: `map-colour${map.suffix}` }, options);
    map.draw = choice.onchange = () => drawMap(map, map.columns[choice.value]);
    document.getElementById(`map-tools${map.suffix}`).append(element("label", {}, ["Colour by ", choice]));
  }
  const draw = (dark) => {
    isDark = dark;
    drawFigures();
    data.maps.forEach((map) => map.draw());
  };
  draw(isDark);
  scheme.addEventListener("change", () => draw(scheme.matches));

  // Figures are as wide as the window, so they are scaled down for printing; paper is light.
  const canvases = [...document.querySelectorAll(".canvas")];
  addEventListener("beforeprint", () => {
    if (isDark) draw(false);
    canvases.forEach((canvas) => (canvas.style.zoom = Math.min(1, 680 / canvas.offsetWidth)));
  });
  addEventListener("afterprint", () => {
    canvases.forEach((canvas) => (canvas.style.zoom = ""));
    if (scheme.matches) draw(true);
  });

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
