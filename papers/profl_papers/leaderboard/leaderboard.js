// A header's button sorts its table: numbers by size, texts by letters, cells without a figure always last.
"use strict";
(() => {
  const compare = (a, b) => {
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y;
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const headers = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    headers.forEach((header, column) => {
      header.querySelector("button").addEventListener("click", () => {
        const down = header.getAttribute("aria-sort") === "ascending";
        for (const other of headers) other.setAttribute("aria-sort", "none");
        header.setAttribute("aria-sort", down ? "descending" : "ascending");
        const value = (row) => row.cells[column].dataset.value;
        const rows = [...body.rows].sort((a, b) => {
          const [x, y] = [value(a), value(b)];
          if (x === "" || y === "") return (x === "") - (y === "");
          return down ? compare(y, x) : compare(x, y);
        });
        body.append(...rows);
      });
    });
  }
  document.documentElement.dataset.ready = "yes";
})();
