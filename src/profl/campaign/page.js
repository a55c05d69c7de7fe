// What is pointed at, lines that can be hidden, one client picked out of all. Nothing is fetched: the figures are in the page.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg", W = 460, H = 250, LEFT = 58, RIGHT = 14, TOP = 10, BOTTOM = 40;
  const short = (v, digits = 4) => (v === null || v === undefined ? "-" : String(Number(v.toPrecision(digits))));
  const node = (parent, name, attributes) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return parent.appendChild(made);
  };
  let chosen = "";

  const charts = [...document.querySelectorAll("figure.chart")].map((figure) => {
    const { box: [left, right, low, high], lines } = JSON.parse(figure.querySelector("script").textContent);
    const svg = figure.querySelector("svg"), readout = figure.querySelector(".readout");
    const x = (v) => LEFT + (v - left) / (right - left) * (W - LEFT - RIGHT);
    const y = (v) => H - BOTTOM - (v - low) / (high - low) * (H - TOP - BOTTOM);
    const cursor = node(svg, "path", { class: "cursor", d: "" });
    const own = node(svg, "path", { class: "chosen", d: "" });
    const all = [...new Set(lines.flatMap((line) => line[2]))].sort((a, b) => a - b);
    let shown = -1;

    const says = (at) => {
      const words = [], clients = [];
      for (const [name, kind, xs, ys, tops] of lines) {
        const i = xs.indexOf(at);
        if (i < 0 || ys[i] === null) continue;
        if (kind === "client" && name !== chosen) clients.push(ys[i]);
        else words.push(`${name} ${tops ? `${short(ys[i])} to ${short(tops[i])}` : short(ys[i])}`);
      }
      if (clients.length === 1) words.push(`client ${short(clients[0])}`);
      if (clients.length > 1) words.push(`clients ${short(Math.min(...clients))} to ${short(Math.max(...clients))}`);
      return `${figure.dataset.x} ${short(at)}: ${words.join(", ")}`;
    };
    const show = (i) => {
      shown = i;
      cursor.setAttribute("d", i < 0 ? "" : `M${x(all[i])} ${TOP}V${H - BOTTOM}`);
      readout.textContent = i < 0 ? "" : says(all[i]);
    };
    const nearest = (event) => {
      const seen = svg.getBoundingClientRect();
      const at = left + ((event.clientX - seen.left) / seen.width * W - LEFT) / (W - LEFT - RIGHT) * (right - left);
      return all.reduce((best, v, i) => (Math.abs(v - at) < Math.abs(all[best] - at) ? i : best), 0);
    };
    svg.addEventListener("pointermove", (event) => all.length && show(nearest(event)));
    svg.addEventListener("pointerdown", (event) => all.length && show(nearest(event)));
    svg.addEventListener("pointerleave", () => show(-1));
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !all.length) return;
      event.preventDefault();
      show(Math.min(all.length - 1, Math.max(0, shown + step)));
    });
    for (const button of figure.querySelectorAll(".tools button")) {
      button.onclick = () => {
        const hidden = svg.classList.toggle(`hide-${button.dataset.kind}`);
        button.setAttribute("aria-pressed", String(!hidden));
      };
    }
    return () => {
      const line = lines.find(([name, kind]) => kind === "client" && name === chosen);
      const points = line ? line[2].map((v, i) => [v, line[3][i]]).filter(([, v]) => v !== null) : [];
      own.setAttribute("d", points.length ? "M" + points.map(([a, b]) => `${x(a)} ${y(b)}`).join("L") : "");
      show(shown);
    };
  });

  const slopes = document.getElementById("slopes");
  const table = slopes && JSON.parse(document.getElementById("slopes-data").textContent);
  const fill = () => {
    const i = table.clients.indexOf(chosen);
    const [mean, error] = i < 0 ? [table.mean, table.error] : [table.each[i], table.errors && table.errors[i]];
    slopes.querySelectorAll("tbody tr").forEach((row, k) => [...row.cells].slice(1).forEach((cell, j) => {
      cell.textContent = short(mean[k][j], 3) + " ";
      if (error) cell.appendChild(document.createElement("small")).textContent = `± ${short(error[k][j], 3)}`;
    }));
    document.getElementById("slopes-of").textContent = i < 0 ? table.all : chosen;
  };
  const select = document.getElementById("client");
  if (select) {
    select.onchange = () => {
      chosen = select.value;
      charts.forEach((redraw) => redraw());
      if (slopes) fill();
      for (const row of document.querySelectorAll("tr[data-client]")) {
        row.classList.toggle("chosen", row.dataset.client === chosen);
        const box = row.closest(".scroll");
        if (row.dataset.client === chosen) box.scrollTop = row.offsetTop - box.clientHeight / 2;
      }
    };
  }
  for (const form of document.querySelectorAll("form[data-once]")) {
    form.addEventListener("submit", () => {
      const button = form.querySelector("button");
      setTimeout(() => { button.disabled = true; button.textContent = "Working ..."; });
    });
  }
})();
