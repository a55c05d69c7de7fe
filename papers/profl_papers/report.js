// Draws every panel of the report as SVG: lines with bands over seeds, levels, hover, legend, linear or log scale; and
// the decoupled-risk landscape. Nothing is fetched; the data are in the page.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const W = 460, H = 300, LEFT = 62, RIGHT = 20, TOP = 10, BOTTOM = 40;

  const node = (name, attributes = {}, parent = null, text = null) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== null) made.textContent = text;
    if (parent) parent.appendChild(made);
    return made;
  };
  const element = (name, attributes = {}, parent = null, text = null) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== null) made.textContent = text;
    if (parent) parent.appendChild(made);
    return made;
  };
  const toggles = (lines, tools, hidden, draw) => lines.forEach((line, i) => {
    const button = element("button", { type: "button", "aria-pressed": "true", "data-toggle": i }, tools);
    element("span", { class: "swatch", style: `background:${line.colour}` }, button);
    button.append(line.label);
    button.onclick = () => {
      hidden.has(i) ? hidden.delete(i) : hidden.add(i);
      button.setAttribute("aria-pressed", String(!hidden.has(i)));
      draw();
    };
  });

  const short = (value) => {
    if (value === null || !Number.isFinite(value)) return "-";
    const size = Math.abs(value);
    if (size !== 0 && (size >= 1e5 || size < 1e-3)) return value.toExponential(1).replace("e+", "e");
    return String(Number(value.toPrecision(4)));
  };
  const finite = (values) => values.filter((value) => value !== null && Number.isFinite(value));

  // Round numbers between low and high, about `count` of them.
  const ticks = (low, high, count) => {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-12) + step * 1e-9; k++) found.push(k * step);
    return found;
  };
  const decades = (low, high) => {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    const every = Math.max(1, Math.ceil((last - first + 1) / 6));
    const found = [];
    for (let k = first; k <= last; k += every) found.push(10 ** k);
    return found.length > 1 ? found : [low, Math.sqrt(low * high), high];
  };

  const axis = (low, high, from, to, log) => {
    const f = log ? Math.log10 : (v) => v;
    const scale = (to - from) / (f(high) - f(low) || 1);
    return (v) => from + (f(v) - f(low)) * scale;
  };

  const frame = (svg, spec, x, y, xs, ys, bottom) => {
    for (const value of ys) {
      node("line", { x1: LEFT, x2: W - RIGHT, y1: y(value), y2: y(value), class: "grid" }, svg);
      node("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, svg, short(value));
    }
    for (const value of xs) {
      node("text", { x: x(value), y: bottom + 15, "text-anchor": "middle" }, svg, short(value));
    }
    node("path", { d: `M${LEFT} ${TOP}V${bottom}H${W - RIGHT}`, class: "axis" }, svg);
    node("text", { x: (LEFT + W - RIGHT) / 2, y: bottom + 33, "text-anchor": "middle" }, svg, spec.x);
    const middle = (TOP + bottom) / 2;
    node("text", { x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, svg, spec.y);
  };

  const drawLines = (box, spec) => {
    const hidden = new Set();
    let log = spec.scale === "log";
    const svg = node("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${spec.title}: ${spec.y}` }, box);
    const tools = element("div", { class: "tools" }, box);
    const readout = element("p", { class: "readout" }, box, "");
    // A risk can be negative, so its log scale shows how far it is above the optimum.
    const best = spec.y.endsWith("risk") ? spec.levels.find((level) => level.label.includes("PO")) : undefined;
    const positive = best || spec.lines.some((line) => finite(line.mean).some((v) => v > 0));

    const draw = () => {
      svg.replaceChildren();
      const floor = log && best ? best.value : 0;
      const lower = (v) => (v === null ? null : v - floor);
      const drawn = spec.lines.map((line) => ({
        ...line, mean: line.mean.map(lower), low: line.low.map(lower), high: line.high.map(lower),
      }));
      const shown = drawn.filter((_, i) => !hidden.has(i));
      const levels = spec.levels.map((level) => ({ ...level, value: lower(level.value) }))
        .filter((level) => level.value !== null && (!log || level.value > 0));
      let values = finite((shown.length ? shown : drawn).flatMap((l) => [...l.mean, ...l.low, ...l.high]));
      values = values.concat(levels.map((level) => level.value));
      if (log) values = values.filter((v) => v > 0);
      if (!values.length) values = log ? [0.1, 1] : [0, 1];
      let low = Math.min(...values), high = Math.max(...values);
      if (!(high > low)) { high = low + (Math.abs(low) || 1) * 0.1; }
      if (log) { low = Math.max(low, high * 1e-12) * 0.8; high *= 1.25; } else {
        const room = (high - low) * 0.05; low -= room; high += room;
      }
      const last = Math.max(...spec.lines.flatMap((l) => finite(l.x)), 1);
      const bottom = H - BOTTOM;
      const x = axis(0, last, LEFT, W - RIGHT, false), y = axis(low, high, bottom, TOP, log);
      const named = floor ? { ...spec, y: `${spec.y} above the optimum` } : spec;
      frame(svg, named, x, y, ticks(0, last, 5), log ? decades(low, high) : ticks(low, high, 5), bottom);
      const inside = (v) => y(log ? Math.max(v, low) : v).toFixed(1);
      const path = (xs, vs) => {
        let d = "", pen = false;
        vs.forEach((v, i) => {
          if (v === null) { pen = false; return; }
          d += `${pen ? "L" : "M"}${x(xs[i]).toFixed(1)} ${inside(v)}`;
          pen = true;
        });
        return d;
      };
      drawn.forEach((line, i) => {
        if (hidden.has(i)) return;
        const keep = line.x.map((_, k) => k).filter((k) => line.low[k] !== null && line.high[k] !== null);
        const up = keep.map((k) => `${x(line.x[k]).toFixed(1)} ${inside(line.high[k])}`);
        const down = keep.map((k) => `${x(line.x[k]).toFixed(1)} ${inside(line.low[k])}`).reverse();
        if (keep.length) node("path", { d: `M${up.concat(down).join("L")}Z`, class: "band", fill: line.colour }, svg);
        node("path", { d: path(line.x, line.mean), class: "mean", stroke: line.colour, "data-line": i }, svg);
      });
      levels.forEach((level, i) => {
        const at = y(level.value);
        const dash = level.label.includes("PO") ? "6 4" : level.label.includes("PS") ? "2 3" : "8 3 2 3";
        node("line", { x1: LEFT, x2: W - RIGHT, y1: at, y2: at, class: "level", "stroke-dasharray": dash }, svg);
        const above = at > TOP + 14 ? at - 4 : at + 12;
        node("text", { x: W - RIGHT - 2, y: above, "text-anchor": "end" }, svg, level.label);
      });
      const cursor = node("line", { y1: TOP, y2: bottom, class: "cursor", visibility: "hidden" }, svg);
      const hover = (event) => {
        const place = svg.getBoundingClientRect();
        const wanted = ((event.clientX - place.left) / place.width * W - LEFT) / (W - RIGHT - LEFT) * last;
        if (wanted < 0 || wanted > last) return leave();
        cursor.setAttribute("x1", x(wanted)); cursor.setAttribute("x2", x(wanted));
        cursor.setAttribute("visibility", "visible");
        const parts = drawn.flatMap((line, i) => {
          if (hidden.has(i) || !line.x.length) return [];
          let best = 0;
          line.x.forEach((v, k) => { if (Math.abs(v - wanted) < Math.abs(line.x[best] - wanted)) best = k; });
          return [`${line.label} ${short(line.mean[best])} (${short(line.low[best])} to ${short(line.high[best])})`];
        });
        readout.textContent = `${short(Math.round(wanted))} ${spec.x}: ${parts.join("; ")}`;
      };
      const leave = () => { cursor.setAttribute("visibility", "hidden"); readout.textContent = ""; };
      svg.onpointermove = hover;
      svg.onpointerdown = hover;
      svg.onpointerleave = leave;
      box.dataset.drawn = String(svg.querySelectorAll("path.mean").length);
    };

    toggles(spec.lines, tools, hidden, draw);
    if (positive) {
      const scale = element("button", { type: "button", class: "scale", title: "linear or logarithmic" }, tools);
      const say = () => { scale.textContent = log ? "log" : "linear"; };
      scale.onclick = () => { log = !log; say(); draw(); };
      say();
    }
    draw();
  };

  const SHADES = ["#08306b", "#08519c", "#2171b5", "#4292c6", "#6baed6", "#9ecae1", "#c6dbef", "#deebf7", "#fff5eb",
    "#fdd0a2", "#fdae6b", "#fd8d3c", "#d94801"];

  const drawLandscape = (box, spec) => {
    const hidden = new Set();
    const height = 420, bottom = height - BOTTOM;
    const svg = node("svg", { viewBox: `0 0 ${W} ${height}`, role: "img", "aria-label": spec.title }, box);
    const tools = element("div", { class: "tools" }, box);
    const readout = element("p", { class: "readout" }, box, "");
    const [low, high] = [spec.at[0], spec.at[spec.at.length - 1]];
    const x = axis(low, high, LEFT, W - RIGHT, false), y = axis(low, high, bottom, TOP, false);
    const flat = spec.risk.flat();
    const sorted = [...flat].sort((a, b) => a - b);
    const shade = (v) => {  // by rank, so that a steep wall does not hide the valley
      let a = 0, b = sorted.length;
      while (a < b) { const m = (a + b) >> 1; sorted[m] < v ? a = m + 1 : b = m; }
      return Math.min(SHADES.length - 1, Math.floor(a / sorted.length * SHADES.length));
    };
    const step = spec.at[1] - spec.at[0];
    const draw = () => {
      svg.replaceChildren();
      const clip = `clip-${box.id}`;
      const area = { x: LEFT, y: TOP, width: W - RIGHT - LEFT, height: bottom - TOP };
      node("rect", area, node("clipPath", { id: clip }, node("defs", {}, svg)));
      const inner = node("g", { "clip-path": `url(#${clip})` }, svg);
      const cells = node("g", { "shape-rendering": "crispEdges" }, inner);
      spec.risk.forEach((row, i) => {  // row i: model parameter at[i]; column j: data parameter at[j]
        let j = 0;
        while (j < row.length) {
          let k = j + 1;
          while (k < row.length && shade(row[k]) === shade(row[j])) k++;
          const left = x(spec.at[j] - step / 2), top = y(spec.at[i] + step / 2);
          const size = { x: left, y: top, width: x(spec.at[k - 1] + step / 2) - left, height: y(spec.at[i] - step / 2) - top };
          node("rect", { ...size, fill: SHADES[shade(row[j])] }, cells);
          j = k;
        }
      });
      node("line", { x1: x(low), y1: y(low), x2: x(high), y2: y(high), stroke: "#000", "stroke-dasharray": "5 4" }, inner);
      spec.lines.forEach((line, i) => {
        if (hidden.has(i)) return;
        const d = line.data.map((v, k) => `${k ? "L" : "M"}${x(v).toFixed(1)} ${y(line.model[k]).toFixed(1)}`).join("");
        node("path", { d, class: "mean", stroke: "#fff", style: "stroke-width:4;opacity:.8" }, inner);
        node("path", { d, class: "mean", stroke: line.colour, "data-line": i }, inner);
        node("circle", { cx: x(line.data[0]), cy: y(line.model[0]), r: 3.5, fill: "#fff", stroke: line.colour }, inner);
      });
      for (const point of spec.points) {
        const px = x(point.value), py = y(point.value);
        node("circle", { cx: px, cy: py, r: 5, fill: "#fff", stroke: "#000", "stroke-width": 2 }, inner);
        const label = { x: px + 9, y: py + 14, style: "fill:#000;font-weight:700;paint-order:stroke;stroke:#fff;stroke-width:3" };
        node("text", label, inner, point.label);
      }
      frame(svg, spec, x, y, ticks(low, high, 5), [], bottom);
      for (const value of ticks(low, high, 6)) {
        node("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, svg, short(value));
      }
      box.dataset.drawn = String(svg.querySelectorAll("path.mean[data-line]").length);
    };
    svg.onpointermove = (event) => {
      const place = svg.getBoundingClientRect();
      const share = ((event.clientX - place.left) / place.width * W - LEFT) / (W - RIGHT - LEFT);
      const rise = (bottom - (event.clientY - place.top) / place.height * height) / (bottom - TOP);
      const [j, i] = [share, rise].map((s) => Math.round(s * (spec.at.length - 1)));
      const inside = spec.risk[i] !== undefined && spec.risk[i][j] !== undefined;
      readout.textContent = inside
        ? `deployed ${short(spec.at[j])}, model ${short(spec.at[i])}: risk ${short(spec.risk[i][j])}` : "";
    };
    svg.onpointerleave = () => { readout.textContent = ""; };
    toggles(spec.lines, tools, hidden, draw);
    draw();
  };

  const data = JSON.parse(document.getElementById("data").textContent);
  for (const box of document.querySelectorAll("[data-panel]")) {
    const spec = data[box.dataset.panel];
    (spec.kind === "landscape" ? drawLandscape : drawLines)(box, spec);
  }
  document.documentElement.dataset.ready = "yes";
})();
