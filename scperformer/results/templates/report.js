// The figures, the map of cells and the tables of the report. User texts become text nodes, never HTML.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const config = { displayModeBar: false, showTips: false };
  const base = {
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: "#1d2733" },
    margin: { l: 10, r: 16, t: 12, b: 44 },
    paper_bgcolor: "#fff",
    plot_bgcolor: "#fff",
    hoverlabel: { align: "left", bgcolor: "#fff", bordercolor: "#8793a0", font: { color: "#1d2733" } },
  };
  const marks = { circle: "●", diamond: "◆", square: "■", cross: "✚", x: "✖", "triangle-up": "▲" };
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  const element = (tag, properties = {}, children = []) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };

  const save = (content, type, name) => {
    const link = element("a", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  const downloads = (name, figure) =>
    ["svg", "png"].map((format) =>
      element("button", {
        type: "button",
        textContent: format.toUpperCase(),
        title: `Download this figure as ${format.toUpperCase()}`,
        onclick: () => {
          const { plot, width, height } = figure();
          Plotly.downloadImage(plot, { format, filename: name, width, height, scale: format === "png" ? 2 : 1 });
        },
      }),
    );

  // Figures whose traces and layout are in the data.
  const drawn = new Set([...data.figures.map(({ name }) => name), "composition", "groups", "map"]);
  for (const place of document.querySelectorAll("[data-figure]")) if (!drawn.has(place.dataset.figure)) place.remove();
  for (const figure of data.figures) {
    const place = document.getElementById(`figure-${figure.name}`);
    if (!place) continue;
    const canvas = place.querySelector(".canvas");
    canvas.style.minWidth = `${figure.width}px`;
    canvas.style.height = `${figure.layout.height}px`;
    const layout = { ...base, ...figure.layout };
    Plotly.newPlot(canvas, figure.data, layout, config);
    const size = () => ({ plot: canvas, width: Math.max(canvas.clientWidth, 700), height: figure.layout.height });
    place.querySelector("figcaption").append(element("span", { className: "tools" }, downloads(figure.name, size)));
  }

  // A figure gets a new size with its place: when the window changes, or a folded section is opened.
  const canvases = [...document.querySelectorAll(".canvas")];
  const fitting = new ResizeObserver((places) => {
    for (const { target } of places) if (target.clientWidth && target.layout) Plotly.relayout(target, { autosize: true });
  });
  canvases.forEach((canvas) => fitting.observe(canvas));

  // Figures are as wide as the window, so they are scaled down for printing.
  const shrink = (canvas) => (canvas.style.zoom = Math.min(1, 680 / canvas.offsetWidth));
  addEventListener("beforeprint", () => canvases.forEach(shrink));
  addEventListener("afterprint", () => canvases.forEach((canvas) => (canvas.style.zoom = "")));

  // Tables: a click on a title sorts them; they can be searched, and saved as CSV.
  const value = (cell) => (cell.dataset.value === undefined ? null : Number(cell.dataset.value));
  const words = (cell) => cell.textContent.replace(/^[●◆■✚✖▲]\s/, "").trim();
  const compare = new Intl.Collator(undefined, { numeric: true }).compare;
  // Spreadsheets run texts with these first characters as formulas.
  const quoted = (text) => `"${(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text).replace(/"/g, '""')}"`;

  for (const box of document.querySelectorAll(".table")) {
    const table = box.querySelector("table");
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const titles = [...table.tHead.rows[0].cells];
    titles.forEach((title, column) => {
      const isNumber = title.classList.contains("number");
      const button = element("button", { type: "button" }, [...title.childNodes]);
      title.append(button);
      title.setAttribute("aria-sort", "none");
      button.onclick = () => {
        // The first click on a column of numbers shows the largest numbers.
        const first = isNumber ? "descending" : "ascending";
        const second = isNumber ? "ascending" : "descending";
        const order = title.getAttribute("aria-sort") === first ? second : first;
        titles.forEach((other) => other.setAttribute("aria-sort", other === title ? order : "none"));
        const sign = order === "ascending" ? 1 : -1;
        rows.sort((row, other) => {
          const [a, b] = [row.cells[column], other.cells[column]];
          if (!isNumber) return sign * compare(words(a), words(b));
          const [x, y] = [value(a), value(b)];
          const last = Number(!Number.isFinite(x ?? NaN)) - Number(!Number.isFinite(y ?? NaN));
          return last || sign * (x - y) || 0;
        });
        body.append(...rows);
      };
    });
    const tools = element("div", { className: "tools" });
    if (rows.length > 5) {
      const count = element("span", { className: "sub" });
      count.setAttribute("role", "status");
      const search = element("input", { type: "search", placeholder: "Search" });
      search.setAttribute("aria-label", `Search in ${box.dataset.name}`);
      search.oninput = () => {
        const wanted = search.value.trim().toLowerCase();
        rows.forEach((row) => (row.hidden = !row.textContent.toLowerCase().includes(wanted)));
        const numShown = rows.filter((row) => !row.hidden).length;
        count.textContent = wanted ? `${numShown} of ${rows.length} rows` : "";
      };
      tools.append(search, count);
    }
    const csv = element("button", { type: "button", textContent: "CSV", title: "Download this table as CSV" });
    csv.setAttribute("aria-label", `Download ${box.dataset.name} as CSV`);
    csv.onclick = () => {
      const line = (row) => [...row.cells].map((cell) => cell.dataset.value ?? quoted(words(cell))).join(",");
      const lines = [table.tHead.rows[0], ...rows.filter((row) => !row.hidden), ...(table.tFoot?.rows ?? [])].map(line);
      save(`${lines.join("\r\n")}\r\n`, "text/csv", `${box.id.replace("-table", "")}.csv`);
    };
    tools.append(csv);
    box.querySelector("h3").after(tools);
  }

  // Sections are folded; a link opens its own.
  const open = (id) => {
    const folded = document.getElementById(id)?.querySelector("details.folded");
    if (folded) folded.open = true;
  };
  for (const link of document.querySelectorAll("nav a")) link.addEventListener("click", () => open(link.hash.slice(1)));
  open(location.hash.slice(1));

  // A line says where there is more than a box shows.
  const cue = (scroll) => {
    const line = element("div", { className: "cue sub" });
    scroll.before(line);
    const look = () => {
      const isWide = scroll.scrollWidth > scroll.clientWidth + 8 && scroll.scrollLeft < 8;
      const isHigh = scroll.scrollHeight > scroll.clientHeight + 8 && scroll.scrollTop < 8;
      const ways = [...(isWide ? ["sideways →"] : []), ...(isHigh ? ["down ↓"] : [])];
      line.textContent = ways.length ? `Scroll ${ways.join(" and ")} to see all of it` : "";
      line.classList.toggle("shown", ways.length > 0);
    };
    new ResizeObserver(look).observe(scroll);
    scroll.addEventListener("scroll", look);
    look();
  };
  document.querySelectorAll(".scroll").forEach(cue);

  const select = (id, title, options) => {
    const made = element("select", { id });
    for (const [value, text] of options) made.append(element("option", { value, textContent: text }));
    return { made, label: element("label", {}, [`${title} `, made]) };
  };
  const short = (text, length = 28) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);
  const stops = (colours) => colours.map((colour, i) => [i / (colours.length - 1), colour]);
  const percent = (share) => `${(100 * share).toFixed(1)}%`;

  // The composition of the samples.
  const composition = data.composition;
  const shares = (kind) => kind.counts.map((row) => {
    const sum = row.reduce((a, b) => a + b, 0);
    return row.map((num) => (sum ? num / sum : 0));
  });
  const rowsAxis = (names, more = {}) => ({
    tickmode: "array",
    tickvals: names.map((_, i) => i),
    ticktext: names.map((name) => plain(short(name, 40))),
    range: [names.length - 0.5, -0.5],
    showgrid: false,
    zeroline: false,
    automargin: true,
    fixedrange: true,
    ...more,
  });
  const canvasOf = (name) => document.querySelector(`#figure-${name} .canvas`);
  const withDownloads = (name) => {
    const size = () => {
      const canvas = canvasOf(name);
      return { plot: canvas, width: Math.max(canvas.clientWidth, 700), height: canvas.layout.height };
    };
    document.querySelector(`#figure-${name} figcaption`).append(element("span", { className: "tools" }, downloads(name, size)));
  };
  const kinds = composition.kinds.map(({ name }, i) => [String(i), name]);
  {
    const num = composition.samples.length;
    const of = select("composition-kind", "Show", kinds);
    const view = select("composition-view", "as", [["bars", "bars"], ["heat", "heat map"]]);
    view.made.value = num > 30 ? "heat" : "bars";
    const order = select("composition-order", "Order", []);
    const orders = () => {
      const before = order.made.value;
      const { values } = composition.kinds[Number(of.made.value)];
      const list = [["name", "by name"], ["similar", "by similarity"], ...values.map((value, i) => [String(i), `by share of ${short(value)}`])];
      order.made.replaceChildren(...list.map(([value, text]) => element("option", { value, textContent: text })));
      order.made.value = list.some(([value]) => value === before) && before ? before : num > 30 ? "similar" : "name";
    };
    const drawComposition = () => {
      const kind = composition.kinds[Number(of.made.value)];
      const all = shares(kind);
      let places = [...all.keys()];
      if (order.made.value === "similar") places = composition.order;
      else if (order.made.value !== "name") places.sort((a, b) => all[b][Number(order.made.value)] - all[a][Number(order.made.value)]);
      const names = places.map((i) => composition.samples[i]);
      const asBars = view.made.value === "bars";
      const row = asBars ? 34 : num > 30 ? 14 : 26;
      const hover = (i, j) => `${plain(composition.samples[i])}, ${plain(kind.values[j])}<br>${kind.counts[i][j].toLocaleString()} cells, ${percent(all[i][j])}`;
      const unknown = kind.values.indexOf(data.unknown);
      const traces = asBars
        ? kind.values.map((value, j) => ({
            type: "bar",
            orientation: "h",
            name: plain(value),
            y: places.map((_, row) => row),
            x: places.map((i) => all[i][j]),
            text: places.map(() => (j === unknown ? "" : plain(value))),
            textposition: "inside",
            insidetextanchor: "middle",
            textangle: 0,
            marker: {
              color: kind.colours[j],
              line: { color: "#fff", width: 0.5 },
              pattern: j === unknown ? { shape: "/", fgcolor: kind.colours[j], bgcolor: "#fff", size: 7, solidity: 0.35, fillmode: "replace" } : {},
            },
            hovertext: places.map((i) => hover(i, j)),
            hoverinfo: "text",
          }))
        : [
            {
              type: "heatmap",
              z: places.map((i) => all[i]),
              hovertext: places.map((i) => kind.values.map((_, j) => hover(i, j))),
              hoverinfo: "text",
              colorscale: [[0, "#FFFFFF"], [0.001, "#EDF1F6"], ...stops(data.expression).slice(1)],
              zmin: 0,
              zmax: Math.max(...all.flat()),
              xgap: 1,
              ygap: num > 60 ? 0 : 1,
              colorbar: { thickness: 12, tickformat: ".0%", title: { text: "share of<br>the sample" }, len: 300, lenmode: "pixels", y: 1, yanchor: "top" },
            },
          ];
      const height = (asBars ? 70 : 150) + row * names.length;
      const layout = {
        ...base,
        height,
        margin: { ...base.margin, r: 24 },
        barmode: "stack",
        bargap: 0.2,
        showlegend: false,
        uniformtext: { mode: "hide", minsize: 10 },
        xaxis: asBars
          ? { range: [0, 1], tickvals: [0, 0.25, 0.5, 0.75, 1], tickformat: ".0%", fixedrange: true }
          : rowsAxis(kind.values, { range: [-0.5, kind.values.length - 0.5], tickangle: -45, side: "top" }),
        yaxis: rowsAxis(names, row < 20 ? { tickfont: { size: 10 } } : {}),
      };
      const canvas = canvasOf("composition");
      canvas.style.height = `${height}px`;
      canvas.style.minWidth = asBars ? "340px" : `${220 + 26 * kind.values.length}px`;
      Plotly.react(canvas, traces, layout, config);
    };
    of.made.onchange = () => (orders(), drawComposition());
    view.made.onchange = order.made.onchange = drawComposition;
    orders();
    document.getElementById("composition-tools").append(of.label, view.label, order.label);
    drawComposition();
    withDownloads("composition");
  }

  // The samples in groups.
  const groups = Object.entries(composition.groups);
  if (groups.length) {
    const by = select("groups-by", "Samples by", groups.map(([name], i) => [String(i), name]));
    const of = select("groups-kind", "Show", kinds);
    const drawGroups = () => {
      const values = groups[Number(by.made.value)][1];
      const kind = composition.kinds[Number(of.made.value)];
      const all = shares(kind);
      const found = [...new Set(values)].sort(compare);
      const traces = found.map((value, place) => {
        const places = [...values.keys()].filter((i) => values[i] === value);
        const points = kind.values.flatMap((_, j) => places.map((i) => [j, i]));
        return {
          type: "box",
          name: plain(`${value} (${places.length})`),
          x: points.map(([j]) => j),
          y: points.map(([j, i]) => all[i][j]),
          text: points.map(([j, i]) => `${plain(composition.samples[i])}<br>${plain(kind.values[j])}: ${percent(all[i][j])}`),
          hoverinfo: "text",
          boxpoints: "all",
          jitter: 0.5,
          pointpos: 0,
          marker: { color: data.palette[place % data.palette.length], size: 5, opacity: 0.75 },
          line: { width: 1.2 },
          fillcolor: `${data.palette[place % data.palette.length]}33`,
        };
      });
      const canvas = canvasOf("groups");
      const layout = {
        ...base,
        height: 420,
        boxmode: "group",
        showlegend: true,
        legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
        xaxis: rowsAxis(kind.values, { range: [-0.5, kind.values.length - 0.5], tickangle: -45 }),
        yaxis: { tickformat: ".0%", rangemode: "tozero", title: { text: "share of the sample" }, fixedrange: true, automargin: true },
      };
      canvas.style.height = "420px";
      canvas.style.minWidth = `${120 + kind.values.length * (30 + 16 * found.length)}px`;
      Plotly.react(canvas, traces, layout, config);
    };
    by.made.onchange = of.made.onchange = drawGroups;
    document.getElementById("groups-tools").append(by.label, of.label);
    drawGroups();
    withDownloads("groups");
  }

  // The map.
  const map = data.map;
  if (!map) return;
  const unpacked = ({ kind, data: text }) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return kind === "u1" ? bytes : new Uint16Array(bytes.buffer);
  };
  const [x, y] = ["x", "y"].map((name, axis) => Float32Array.from(unpacked(map[name]), (z) => (z / 65535) * map.span[axis]));
  const num = x.length;
  const labels = data.labels.map(({ name, colour, symbol }) => ({ name, colour, symbol }));
  const coloured = (names) =>
    names.map((name, i) => ({
      name,
      colour: data.palette[i % data.palette.length],
      symbol: data.symbols[Math.floor(i / 10) % data.symbols.length],
    }));
  const flagged = (names) => names.map((name, i) => ({ name, colour: ["#AFB8C2", "#D55E00"][i], symbol: ["circle", "x"][i] }));
  // A column has values and codes, or numbers, which are unpacked when they are first needed.
  const columns = map.columns.map((column) => {
    if (column.codes) {
      const { name, group, values, codes } = column;
      return { name, group, codes: unpacked(codes), values: values === null ? labels : values.join() === "no,yes" ? flagged(values) : coloured(values), hidden: new Set() };
    }
    const { name, group, low, high } = column;
    const [none, steps] = column.kind === "u1" ? [255, 254] : [65535, 65534];
    let found = null;
    const get = () => (found ??= Float32Array.from(unpacked(column), (z) => (z === none ? NaN : low + (z / steps) * (high - low))));
    return { name, group, low, high, get };
  });
  const isKept = (i) => columns.every(({ codes, hidden }) => !hidden?.size || !hidden.has(codes[i]));

  const canvas = canvasOf("map");
  const legend = document.getElementById("map-legend");
  const tip = document.getElementById("map-tip");
  const colour = element("select", { id: "map-colour" });
  for (const group of new Set(columns.map(({ group }) => group))) {
    const entries = columns.map(({ name }, i) => [name, i]).filter(([, i]) => columns[i].group === group);
    if (group === "Expression") entries.sort((a, b) => compare(a[0], b[0]));
    const options = entries.map(([name, i]) => element("option", { value: String(i), textContent: name }));
    colour.append(element("optgroup", { label: group }, options));
  }
  colour.append(element("optgroup", { label: "Density" }, [element("option", { value: "density", textContent: "Number of cells" })]));
  const view = select("map-view", "as", [["points", "points"], ["hexagons", "hexagons"]]);
  view.made.value = map.hexagons ? "hexagons" : "points";
  const names = element("input", { type: "checkbox", id: "map-names", checked: data.labels.length <= 40 });
  const tools = document.getElementById("map-tools");
  tools.append(element("label", {}, ["Colour by ", colour]), view.label, element("label", {}, [names, " Show names"]));
  const find = element("input", { type: "search", id: "map-find", placeholder: "Name of a cell" });
  tools.append(element("label", {}, ["Find ", find]));
  const zoom = (factor) => () => {
    const ranges = Object.fromEntries(
      ["xaxis", "yaxis"].map((axis) => {
        const [low, high] = canvas.layout[axis].range;
        const [middle, half] = [(low + high) / 2, ((high - low) / 2) * factor];
        return [`${axis}.range`, [middle - half, middle + half]];
      }),
    );
    Plotly.relayout(canvas, ranges);
  };
  const showAll = () => Plotly.relayout(canvas, { "xaxis.autorange": true, "yaxis.autorange": true });
  const button = (textContent, title, onclick) => {
    const made = element("button", { type: "button", textContent, title, onclick });
    made.setAttribute("aria-label", title);
    return made;
  };
  const figure = () => ({
    plot: { data: canvas.data, layout: { ...canvas.layout, showlegend: true, legend: { itemsizing: "constant" } }, config },
    width: 1000,
    height: 750,
  });
  tools.append(button("+", "Zoom in", zoom(0.6)), button("−", "Zoom out", zoom(1 / 0.6)), button("Reset", "Show all cells", showAll));
  tools.append(...downloads("map", figure));
  // All that is known about the cells on the map, without the genes.
  const known = columns.filter(({ group }) => group !== "Expression");
  const text = (column, i) => {
    if (column.codes) return column.values[column.codes[i]]?.name ?? "";
    const number = column.get()[i];
    return Number.isNaN(number) ? "" : Number.isInteger(number) || Math.abs(number) >= 1000 ? String(Math.round(number)) : number.toFixed(3);
  };
  const cellsAsCsv = () => {
    const lines = [["cell", ...known.map(({ name }) => name)].map(quoted).join(",")];
    for (let i = 0; i < num; i++) lines.push([map.cells[i], ...known.map((column) => text(column, i))].map(quoted).join(","));
    save(`${lines.join("\r\n")}\r\n`, "text/csv", "cells.csv");
  };
  tools.append(button("CSV of the cells", "Download all that is known about these cells as CSV", cellsAsCsv));

  const size = Math.min(7, Math.max(3, 420 / Math.sqrt(num)));
  let shown = []; // the cells of each trace

  const points = (cells, name, marker) => ({
    type: "scattergl",
    mode: "markers",
    name: plain(name),
    x: Float32Array.from(cells, (i) => x[i]),
    y: Float32Array.from(cells, (i) => y[i]),
    marker: { size, line: { width: 0 }, ...marker },
    hoverinfo: "none",
  });
  // The cell with the smallest sum of distances to (at most 300 of) the others. All that are far away count alike, so it
  // lies in the largest group of them, and not between groups.
  const medoid = (cells) => {
    const step = Math.max(1, Math.floor(cells.length / 300));
    const some = cells.filter((_, place) => place % step === 0);
    const reach = 0.1 * Math.max(map.span[0], map.span[1]);
    let [best, least] = [some[0], Infinity];
    for (const i of some) {
      let sum = 0;
      for (const j of some) sum += Math.min(reach, Math.hypot(x[i] - x[j], y[i] - y[j]));
      if (sum < least) [best, least] = [i, sum];
    }
    return best;
  };

  // Hexagons: the width of one, and for each its centre and its cells.
  const radius = Math.max(map.span[0], map.span[1]) / 90;
  const hexagons = (cells) => {
    const [wide, high] = [Math.sqrt(3) * radius, 1.5 * radius];
    const found = new Map();
    for (const i of cells) {
      let row = Math.round(y[i] / high);
      let column = Math.round(x[i] / wide - (row % 2 ? 0.5 : 0));
      // The nearest centre is that of this row or of the next one.
      let best = Infinity;
      let key = "";
      for (const r of [row - 1, row, row + 1]) {
        const c = Math.round(x[i] / wide - (r % 2 ? 0.5 : 0));
        const distance = Math.hypot(x[i] - (c + (r % 2 ? 0.5 : 0)) * wide, y[i] - r * high);
        if (distance < best) [best, row, column, key] = [distance, r, c, `${r},${c}`];
      }
      if (!found.has(key)) found.set(key, { x: (column + (row % 2 ? 0.5 : 0)) * wide, y: row * high, cells: [] });
      found.get(key).cells.push(i);
    }
    return [...found.values()];
  };
  const corners = [0, 1, 2, 3, 4, 5].map((k) => [radius * Math.sin((k * Math.PI) / 3), radius * Math.cos((k * Math.PI) / 3)]);
  const polygons = (hexes, name, ink) => {
    const [xs, ys] = [[], []];
    for (const hex of hexes) {
      for (const [dx, dy] of [...corners, corners[0]]) {
        xs.push(hex.x + dx);
        ys.push(hex.y + dy);
      }
      xs.push(null);
      ys.push(null);
    }
    return { type: "scatter", mode: "lines", fill: "toself", name: plain(name), x: xs, y: ys, fillcolor: ink, line: { color: "#fff", width: 0.3 }, hoverinfo: "skip" };
  };
  const mix = (scale, share) => {
    const place = Math.min(Math.max(share, 0), 1) * (scale.length - 1);
    const [low, high] = [Math.floor(place), Math.ceil(place)].map((i) => [1, 3, 5].map((k) => parseInt(scale[i].slice(k, k + 2), 16)));
    return `rgb(${low.map((z, k) => Math.round(z + (high[k] - z) * (place - Math.floor(place)))).join()})`;
  };
  const NUM_STEPS = 12;
  const scaleOf = ({ name, group }) => (/^Confidence/.test(name) && group === "Annotation" ? data.confidence : data.expression);
  const titleOf = ({ name, group }) => (group === "Expression" ? `${plain(name)}<br>ln(1 + counts<br>per 10,000)` : plain(name));
  // Hexagons of numbers: a trace for each of some steps, and points outside of the map that have the colour bar.
  const steps = (hexes, numberOf, low, high, scale, title, ticks = {}) => {
    const lists = Array.from({ length: NUM_STEPS }, () => []);
    for (const hex of hexes) {
      const share = high > low ? (numberOf(hex) - low) / (high - low) : 0;
      if (!Number.isNaN(share)) lists[Math.min(NUM_STEPS - 1, Math.max(0, Math.floor(share * NUM_STEPS)))].push(hex);
    }
    const traces = lists.map((list, k) => polygons(list, `step ${k + 1}`, mix(scale, (k + 0.5) / NUM_STEPS))).filter((_, k) => lists[k].length);
    const bar = { type: "scatter", mode: "markers", x: [null], y: [null], marker: { color: [low], cmin: low, cmax: high, colorscale: stops(scale), showscale: true, colorbar: { title: { text: title }, thickness: 12, len: 0.6, ...ticks } }, hoverinfo: "skip" };
    return [...traces, bar];
  };

  const draw = () => {
    const asHexagons = view.made.value === "hexagons" || colour.value === "density";
    const column = colour.value === "density" ? null : columns[Number(colour.value)];
    const cells = [];
    for (let i = 0; i < num; i++) if (isKept(i)) cells.push(i);
    let traces = [];
    legend.replaceChildren();
    shown = [];
    const texts = [];
    const note = (text) => legend.append(element("li", { className: "sub", textContent: text }));
    if (columns.some(({ hidden }) => hidden?.size)) {
      const reset = button("Show all", "Show all cells again", () => {
        for (const { hidden } of columns) hidden?.clear();
        draw();
      });
      note(`${cells.length.toLocaleString()} of ${num.toLocaleString()} cells are shown.`);
      legend.append(element("li", {}, [reset]));
    }
    const hexes = asHexagons ? hexagons(cells) : [];
    if (column === null) {
      const most = hexes.reduce((largest, hex) => Math.max(largest, hex.cells.length), 1);
      const ticks = [1, 10, 100, 1000, 10000].filter((value) => value <= most);
      const more = { tickvals: ticks.map(Math.log10), ticktext: ticks.map(String) };
      traces = steps(hexes, (hex) => Math.log10(hex.cells.length), 0, Math.log10(most), data.expression, "cells in a<br>hexagon", more);
    } else if (column.get) {
      const numbers = column.get();
      const isHighOnTop = scaleOf(column) === data.expression;
      const without = cells.filter((i) => Number.isNaN(numbers[i]));
      const rest = cells.filter((i) => !Number.isNaN(numbers[i]));
      const ends = column.name === "Confidence" || column.name === "Novelty" ? [0, 1] : [column.low, column.high];
      if (without.length) note(`○ not measured (${without.length.toLocaleString()} cells)`);
      if (asHexagons) {
        const mean = (hex) => {
          const found = hex.cells.filter((i) => !Number.isNaN(numbers[i]));
          return found.reduce((sum, i) => sum + numbers[i], 0) / found.length;
        };
        traces = steps(hexes, mean, ...ends, scaleOf(column), `${titleOf(column)}<br>(mean)`);
      } else {
        // Cells with high expression, or with low confidence, are drawn on top.
        rest.sort((i, j) => (isHighOnTop ? numbers[i] - numbers[j] : numbers[j] - numbers[i]));
        if (without.length) {
          traces.push(points(without, "not measured", { color: "#fff", line: { color: "#C5CDD6", width: 1 } }));
          shown.push(without);
        }
        const marker = { color: Float32Array.from(rest, (i) => numbers[i]), cmin: ends[0], cmax: ends[1] > ends[0] ? ends[1] : ends[0] + 1 };
        traces.push(points(rest, column.name, { ...marker, colorscale: stops(scaleOf(column)), colorbar: { title: { text: titleOf(column) }, thickness: 12, len: 0.6 } }));
        shown.push(rest);
      }
    } else {
      const of = column.values.map(() => []);
      const total = column.values.map(() => 0);
      for (let i = 0; i < num; i++) if (column.codes[i] < total.length) total[column.codes[i]] += 1;
      for (const i of cells) of[column.codes[i]]?.push(i);
      // Rare values are drawn on top of the others, and a little larger; unknown cells are on top of all.
      const rank = (code) => (column.values[code].name === data.unknown ? -1 : total[code]);
      const order = [...of.keys()].filter((code) => total[code]).sort((a, b) => rank(b) - rank(a));
      for (const code of order) {
        const { name, colour: ink, symbol } = column.values[code];
        const mark = element("span", { className: "mark", textContent: marks[symbol] });
        mark.style.color = ink;
        const toggle = element("button", { type: "button" }, [mark, ` ${name} `, element("span", { className: "sub", textContent: total[code].toLocaleString() })]);
        toggle.setAttribute("aria-pressed", String(!column.hidden.has(code)));
        toggle.title = "Show or hide these cells";
        toggle.onclick = () => {
          column.hidden.has(code) ? column.hidden.delete(code) : column.hidden.add(code);
          draw();
          [...legend.querySelectorAll("button[aria-pressed]")][order.indexOf(code)].focus();
        };
        legend.append(element("li", {}, [toggle]));
        if (!of[code].length) continue;
        const isRare = of[code].length < 0.005 * cells.length;
        if (!asHexagons) {
          const marked = name === data.unknown ? Math.max(3, 0.8 * size) : size + (isRare ? 2 : 0); // crosses look larger
          traces.push(points(of[code], name, { color: ink, symbol, size: marked }));
          shown.push(of[code]);
        }
        if (names.checked && order.length <= 60 && column.values.length > 2 && name !== data.unknown) {
          const i = medoid(of[code]);
          texts.push({ x: x[i], y: y[i], text: plain(short(name)) });
        }
      }
      if (asHexagons) {
        const lists = column.values.map(() => []);
        for (const hex of hexes) {
          const votes = new Map();
          for (const i of hex.cells) votes.set(column.codes[i], (votes.get(column.codes[i]) ?? 0) + 1);
          const [winner] = [...votes].sort((a, b) => b[1] - a[1])[0];
          lists[winner]?.push(hex);
        }
        for (const code of order) if (lists[code].length) traces.push(polygons(lists[code], column.values[code].name, column.values[code].colour));
        note("A hexagon has the colour of most of its cells.");
      }
    }
    // Names of larger labels come first; others give way upwards or downwards, or are left out. In pixels.
    const taken = [];
    const isFree = (box) => taken.every((other) => Math.abs(other.x - box.x) > (other.width + box.width) / 2 || Math.abs(other.y - box.y) > 17);
    for (const each of texts) {
      const box = { x: (each.x / map.span[0]) * canvas.clientWidth, width: 7 * each.text.length + 4 };
      const y = (each.y / map.span[1]) * canvas.clientHeight;
      each.yshift = [0, 18, -18, 36, -36].find((shift) => isFree({ ...box, y: y + shift }));
      if (each.yshift !== undefined) taken.push({ ...box, y: y + each.yshift });
    }
    const annotations = texts.filter(({ yshift }) => yshift !== undefined).map((text) => ({
      ...text,
      showarrow: false,
      bgcolor: "rgba(255,255,255,0.72)",
      borderpad: 1,
      font: { size: 12, color: "#1d2733" },
      captureevents: false,
    }));
    const axis = { visible: false, zeroline: false };
    const layout = {
      ...base,
      margin: { l: 4, r: 4, t: 4, b: 4 },
      xaxis: axis,
      yaxis: { ...axis },
      dragmode: "zoom",
      hovermode: "closest",
      hoverdistance: 12,
      showlegend: false,
      annotations,
      uirevision: "map",
    };
    Plotly.react(canvas, traces, layout, config);
  };

  const describe = (i) => {
    const lines = [map.cells[i], ...known.map((column) => [column, text(column, i)]).filter(([, value]) => value !== "").map(([column, value]) => `${column.name}: ${value}`)];
    const column = columns[Number(colour.value)];
    if (column?.group === "Expression") lines.push(`${column.name}: ${text(column, i) || "not measured"}`);
    tip.replaceChildren(...lines.map((line) => element("div", { textContent: line })));
    tip.hidden = false;
  };
  // Beside the pointer, on the side of the map where there is room.
  const place = (event) => {
    const box = document.getElementById("map").getBoundingClientRect();
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    const isRight = left > box.width / 2;
    tip.style.left = `${Math.max(0, Math.min(isRight ? left - tip.offsetWidth - 16 : left + 16, box.width - tip.offsetWidth))}px`;
    tip.style.top = `${Math.max(0, Math.min(top + 16, box.height - tip.offsetHeight - 8))}px`;
  };

  colour.onchange = view.made.onchange = names.onchange = draw;
  find.onchange = () => {
    const wanted = find.value.trim();
    const i = wanted ? map.cells.findIndex((name) => name === wanted || name.startsWith(wanted)) : -1;
    tip.hidden = true;
    const circle = { type: "circle", xref: "x", yref: "y", xsizemode: "pixel", ysizemode: "pixel", line: { color: "#000", width: 2 } };
    const shapes = i < 0 ? [] : [{ ...circle, xanchor: x[i], yanchor: y[i], x0: -10, x1: 10, y0: -10, y1: 10 }];
    Plotly.relayout(canvas, { shapes });
    if (i >= 0) describe(i);
    tip.style.left = tip.style.top = "";
    find.setCustomValidity(wanted && i < 0 ? "No cell on the map has this name." : "");
    find.reportValidity();
  };
  draw();
  canvas.on("plotly_hover", ({ points: [point], event }) => {
    const cells = shown[point.curveNumber];
    if (!cells) return;
    describe(cells[point.pointNumber]);
    place(event);
  });
  canvas.on("plotly_unhover", () => (tip.hidden = true));
})();
