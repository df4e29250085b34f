// Probabilities as bars, with an axis whose ticks tell them apart however small they are.

import { colour, draw, safe, short } from "./charts.js";

/** A probability as people read it; a small one is not shown as none, nor a large one as certain. */
export function percent(p) {
  if (p == null) return "";
  const shown = (100 * p).toFixed(1);
  if (shown === "0.0" && p > 0) return "<0.1%";
  return shown === "100.0" && p < 1 ? ">99.9%" : `${shown}%`;
}

/** An axis of probabilities from 0 to the largest: as many digits as its ticks need, and never the same one twice. */
export function percentAxis(most) {
  const end = most > 0 ? Math.min(1.28 * most, 1.28) : 1;
  const digits = Math.max(0, Math.ceil(-Math.log10(end / 4)) - 2 + (end / 4 < 0.01 ? 1 : 0));
  const step = nice(end / 4);
  return { range: [0, end], tick0: 0, dtick: step, tickformat: `.${Math.max(digits, decimals(step))}%` };
}

/** 1, 2 or 5 times a power of ten, at least as large. */
function nice(size) {
  const power = 10 ** Math.floor(Math.log10(size));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= size * 0.999);
}

/** The digits that a share needs as a percentage. */
const decimals = (share) => Math.max(0, -Math.floor(Math.log10(share) + 1e-9) - 2);

/** rows: {name, value, note, strong}; the bars lie, the first on top. On a phone long names stand above their bars. */
export function barChart(into, rows, title) {
  const above = into.clientWidth < 560 && rows.some((row) => row.name.length > 14), strong = rows.some((row) => row.strong);
  const trace = {
    type: "bar", orientation: "h", y: rows.map((_, i) => i), x: rows.map((row) => row.value), width: above ? 0.42 : 0.68,
    marker: { color: rows.map((row, i) => colour((strong ? row.strong : i === 0) ? "accent" : "second")) },
    text: rows.map((row) => percent(row.value)), textposition: "outside", cliponaxis: false, textfont: { color: colour("ink") },
    customdata: rows.map((row) => [safe(row.name), safe(row.note ?? "")]),
    hovertemplate: "%{customdata[0]}: %{text}<br>%{customdata[1]}<extra></extra>",
  };
  const names = above ? rows.map((row, i) => ({
    x: 0, xref: "paper", xanchor: "left", y: i - 0.26, yanchor: "bottom", showarrow: false, align: "left", font: { size: 12 },
    text: short(row.name, Math.floor(into.clientWidth / 7.6)),
  })) : [];
  return draw(into, [trace], {
    height: 64 + (above ? 46 : 28) * Math.max(rows.length, 1), annotations: names,
    xaxis: { ...percentAxis(Math.max(0, ...rows.map((row) => row.value))), title: { text: title, font: { color: colour("muted"), size: 12 } } },
    yaxis: {
      range: [rows.length - 0.4, above ? -0.9 : -0.6], tickvals: rows.map((_, i) => i), ticktext: rows.map((row) => (above ? "" : short(row.name, 60))),
      showgrid: false, zeroline: false, tickfont: { color: colour("ink") },
    },
  }, `${title}: ${rows.map((row) => `${row.name} ${percent(row.value)}`).join(", ")}.`);
}
