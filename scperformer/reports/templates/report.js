// The figures, the map of cells and the tables of the report. User texts become text nodes, never HTML.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const config = { displayModeBar: false, responsive: true, showTips: false };
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

  // Figures are as wide as the window, so they are scaled down for printing.
  const canvases = [...document.querySelectorAll(".canvas")];
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

  // The map.
  const map = data.map;
  if (!map) return;
  const unpacked = ({ kind, data: text }) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return kind === "u1" ? bytes : new Uint16Array(bytes.buffer);
  };
  const [x, y] = ["x", "y"].map((name, axis) => Float32Array.from(unpacked(map[name]), (z) => (z / 65535) * map.span[axis]));
  const num = x.length;
  const ofSample = unpacked(map.sample);
  const ofLabel = unpacked(map.label);
  const confidence = Float32Array.from(unpacked(map.confidence), (z) => (z === 65535 ? NaN : z / 65534));
  // The values of a column: name, colour and symbol.
  const labels = data.labels.map(({ name, colour, symbol }) => ({ name, colour, symbol }));
  const coloured = (names) =>
    names.map((name, i) => ({
      name,
      colour: data.palette[i % data.palette.length],
      symbol: data.symbols[Math.floor(i / 10) % data.symbols.length],
    }));
  const flagged = (names) => names.map((name, i) => ({ name, colour: ["#C5CDD6", "#D55E00"][i], symbol: ["circle", "x"][i] }));
  const stops = (colours) => colours.map((colour, i) => [i / (colours.length - 1), colour]);
  const categories = [
    { name: "Label", values: labels, codes: ofLabel },
    { name: "Sample", values: coloured(data.samples), codes: ofSample },
    ...map.categories.map(({ name, values, codes }) => ({
      name,
      codes: unpacked(codes),
      values: values === null ? labels : values.join() === "no,yes" ? flagged(values) : coloured(values),
    })),
  ];
  const unknown = categories.find(({ name }) => name === "Unknown")?.codes;
  const genes = map.genes.map(({ name, highest, ...rest }) => {
    let values = null; // unpacked when the gene is first chosen
    const get = () => (values ??= Float32Array.from(unpacked(rest), (z) => (z === 255 ? NaN : (z * highest) / 254)));
    return { name, highest, get };
  });

  const canvas = document.querySelector("#figure-map .canvas");
  const legend = document.getElementById("map-legend");
  const tip = document.getElementById("map-tip");
  const shownSamples = new Set(data.samples.keys());
  const hidden = new Set(); // codes of the chosen column that are not shown

  const colour = element("select", { id: "map-colour" });
  const option = (text, key) => element("option", { value: key, textContent: text });
  const group = (label, options) => colour.append(element("optgroup", { label }, options));
  group("Cells", [
    option("Label", "c0"),
    option("Confidence", "confidence"),
    ...categories.slice(1).map(({ name }, i) => option(name, `c${i + 1}`)),
  ]);
  if (genes.length) {
    group("Expression of a gene", genes.map(({ name }, i) => [name, `g${i}`]).sort((a, b) => compare(a[0], b[0])).map((pair) => option(...pair)));
  }
  const names = element("input", { type: "checkbox", id: "map-names", checked: data.labels.length <= 40 });
  const tools = document.getElementById("map-tools");
  tools.append(element("label", {}, ["Colour by ", colour]));
  if (data.samples.length > 1) {
    const boxes = data.samples.map((name, i) => {
      const box = element("input", { type: "checkbox", checked: true });
      box.onchange = () => {
        box.checked ? shownSamples.add(i) : shownSamples.delete(i);
        draw();
      };
      return box;
    });
    const all = (on) =>
      element("button", {
        type: "button",
        textContent: on ? "All" : "None",
        onclick: () => {
          boxes.forEach((box, i) => ((box.checked = on), on ? shownSamples.add(i) : shownSamples.delete(i)));
          draw();
        },
      });
    const list = boxes.map((box, i) => element("label", {}, [box, ` ${data.samples[i]}`]));
    const summary = element("summary", { textContent: "Samples" });
    tools.append(element("details", { id: "map-samples" }, [summary, element("div", {}, [all(true), all(false), ...list])]));
  }
  tools.append(element("label", {}, [names, " Show names"]));
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

  const chosen = () => {
    const [kind, place] = [colour.value[0], Number(colour.value.slice(1))];
    if (kind === "g") return { name: genes[place].name, numbers: genes[place].get(), highest: genes[place].highest };
    return colour.value === "confidence" ? { name: "Confidence", numbers: confidence, highest: 1 } : categories[place];
  };
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
  const median = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];

  const draw = () => {
    const column = chosen();
    const cells = [];
    for (let i = 0; i < num; i++) if (shownSamples.has(ofSample[i])) cells.push(i);
    let traces = [];
    legend.replaceChildren();
    shown = [];
    const texts = [];
    if (column.numbers) {
      const numbers = column.numbers;
      const isGene = column.name !== "Confidence";
      const without = cells.filter((i) => Number.isNaN(numbers[i]));
      const rest = cells.filter((i) => !Number.isNaN(numbers[i]));
      // Cells with high expression, or with low confidence, are drawn on top.
      rest.sort((i, j) => (isGene ? numbers[i] - numbers[j] : numbers[j] - numbers[i]));
      if (without.length) {
        traces.push(points(without, "not measured", { color: "#fff", line: { color: "#C5CDD6", width: 1 } }));
        shown.push(without);
        legend.append(element("li", { textContent: `○ not measured (${without.length.toLocaleString()} cells)` }));
      }
      const title = isGene ? `${plain(column.name)}<br>ln(1 + counts<br>per 10,000)` : "Confidence";
      traces.push(
        points(rest, column.name, {
          color: Float32Array.from(rest, (i) => numbers[i]),
          cmin: 0,
          cmax: column.highest || 1,
          colorscale: stops(isGene ? data.expression : data.confidence),
          colorbar: { title: { text: title }, thickness: 12, len: 0.6 },
        }),
      );
      shown.push(rest);
    } else {
      const groups = column.values.map(() => []);
      for (const i of cells) groups[column.codes[i]]?.push(i);
      // Rare values are drawn on top of the others, and a little larger.
      const order = [...groups.keys()].filter((code) => groups[code].length).sort((a, b) => groups[b].length - groups[a].length);
      for (const code of order) {
        const { name, colour: ink, symbol } = column.values[code];
        const mark = element("span", { className: "mark", textContent: marks[symbol] });
        mark.style.color = ink;
        const toggle = element("button", { type: "button" }, [mark, ` ${name} `, element("span", { className: "sub", textContent: groups[code].length.toLocaleString() })]);
        toggle.setAttribute("aria-pressed", String(!hidden.has(code)));
        toggle.title = "Show or hide these cells";
        toggle.onclick = () => {
          hidden.has(code) ? hidden.delete(code) : hidden.add(code);
          draw();
          [...legend.querySelectorAll("button")][order.indexOf(code)].focus();
        };
        legend.append(element("li", {}, [toggle]));
        if (hidden.has(code)) continue;
        const isRare = groups[code].length < 0.005 * cells.length;
        traces.push(points(groups[code], name, { color: ink, symbol, size: size + (isRare ? 2 : 0) }));
        shown.push(groups[code]);
        if (names.checked && order.length <= 60 && column.values.length > 2) {
          texts.push({
            x: median(groups[code].map((i) => x[i])),
            y: median(groups[code].map((i) => y[i])),
            text: plain(name.length > 28 ? `${name.slice(0, 27)}…` : name),
          });
        }
      }
    }
    const annotations = texts.map((text) => ({
      ...text,
      showarrow: false,
      yshift: 14,
      bgcolor: "rgba(255,255,255,0.6)",
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
    const column = chosen();
    const lines = [
      map.cells[i],
      `Label: ${data.labels[ofLabel[i]].name}${unknown?.[i] ? " (unknown)" : ""}`,
      `Sample: ${data.samples[ofSample[i]]}`,
      `Confidence: ${confidence[i].toFixed(2)}`,
    ];
    if (column.numbers && column.name !== "Confidence") {
      const number = column.numbers[i];
      lines.push(`${column.name}: ${Number.isNaN(number) ? "not measured" : number.toFixed(2)}`);
    } else if (column.codes && column !== categories[0] && column !== categories[1]) {
      lines.push(`${column.name}: ${column.values[column.codes[i]]?.name ?? "–"}`);
    }
    tip.replaceChildren(...lines.map((line) => element("div", { textContent: line })));
    tip.hidden = false;
  };

  colour.onchange = () => {
    hidden.clear();
    draw();
  };
  names.onchange = draw;
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
    describe(shown[point.curveNumber][point.pointNumber]);
    const place = document.getElementById("map").getBoundingClientRect();
    const left = Math.min(event.clientX - place.left + 16, place.width - tip.offsetWidth - 4);
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${event.clientY - place.top + 16}px`;
  });
  canvas.on("plotly_unhover", () => (tip.hidden = true));
})();
