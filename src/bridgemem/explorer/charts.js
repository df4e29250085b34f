// The charts, drawn by Plotly in the page's own colours. Its texts know some markup, so names are escaped for it.

import { label, plain, signed, whole } from "./ask.js";
import { percentAxis } from "./probability.js";

const CONFIG = { displayModeBar: false, responsive: true };
const NARROW = 560;

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
export const safe = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/[\r\n]+/g, " ");
export const short = (text, most) => safe(text.length > most ? `${text.slice(0, most - 1)}…` : text);
const isNarrow = (into) => into.clientWidth < NARROW;

export function draw(into, traces, own, words) {
  const ink = colour("ink"), line = colour("line");
  const axis = {
    gridcolor: line, zerolinecolor: colour("strong-line"), linecolor: line, tickcolor: line, automargin: true,
    fixedrange: true, tickfont: { color: colour("muted") }, title: { font: { color: colour("muted"), size: 12 } },
  };
  const { xaxis = {}, yaxis = {}, ...rest } = own;
  const layout = {
    font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: ink },
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", showlegend: false, dragmode: false,
    margin: { l: 8, r: 12, t: 8, b: 8 }, bargap: 0.32,
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("strong-line"), font: { color: ink } },
    ...rest, xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis },
  };
  into.setAttribute("aria-label", words);
  return window.Plotly.react(into, traces, layout, CONFIG);
}

/** parts: [name, value] from the backbone's score to the total, which the last bar shows. */
export function evidenceChart(into, parts, total) {
  const [base, ...others] = parts, narrow = isNarrow(into);
  let at = base[1];
  const rows = [{ name: base[0], from: 0, size: base[1], text: plain(base[1]), fill: colour("base") }];
  for (const [name, value] of others) {
    rows.push({ name, from: at, size: value, text: signed(value), fill: colour(value < 0 ? "down" : "up") });
    at += value;
  }
  rows.push({ name: "score", from: 0, size: total, text: plain(total), fill: colour("accent") });
  // room on both sides for what is written next to the bars
  const ends = rows.flatMap(({ from, size }) => [from, from + size]);
  const low = Math.min(...ends), high = Math.max(...ends), room = (high - low || 1) * (narrow ? 0.38 : 0.18);
  const trace = {
    type: "bar", orientation: "h", y: rows.map((_, i) => i), x: rows.map((row) => row.size),
    base: rows.map((row) => row.from), marker: { color: rows.map((row) => row.fill) },
    text: rows.map((row) => row.text), textposition: "outside", cliponaxis: false, constraintext: "none",
    textfont: { color: colour("ink") },
    customdata: rows.map((row) => [safe(row.name), row.text]), hovertemplate: "%{customdata[0]}: %{customdata[1]}<extra></extra>",
  };
  return draw(into, [trace], {
    height: 64 + 27 * rows.length,
    xaxis: { range: [low - room, high + room], title: { text: "log score", font: { color: colour("muted"), size: 12 } }, zeroline: true },
    yaxis: {
      autorange: "reversed", tickvals: rows.map((_, i) => i), ticktext: rows.map(({ name }) => short(name, into.clientWidth < 380 ? 20 : 28)),
      showgrid: false, zeroline: false, tickfont: { color: colour("ink") },
    },
  }, `Parts that add up to the score of ${plain(total)}: ${parts.map(([name, value]) => `${name} ${signed(value)}`).join(", ")}.`);
}

/** opinions: {name, rank, share} by the backbone; the one looked at stands out. */
export function backboneChart(into, opinions, candidate) {
  const narrow = isNarrow(into), most = Math.max(...opinions.map(({ share }) => share));
  const percent = (share) => (share < 0.001 ? "under 0.1%" : `${(100 * share).toFixed(1)}%`);
  const trace = {
    type: "bar", orientation: "h", y: opinions.map((_, i) => i), x: opinions.map(({ share }) => share),
    marker: { color: opinions.map(({ name }) => colour(name === candidate ? "accent" : "base")) },
    text: opinions.map(({ share }) => percent(share)), textposition: "outside", cliponaxis: false,
    textfont: { color: colour("ink") },
    customdata: opinions.map(({ name, rank }) => [safe(name), whole(rank)]),
    hovertemplate: "%{customdata[0]}: rank %{customdata[1]} by the backbone, %{text}<extra></extra>",
  };
  return draw(into, [trace], {
    height: 64 + 27 * opinions.length,
    xaxis: {
      ...percentAxis(most),
      title: { text: "share of the probability", font: { color: colour("muted"), size: 12 } },
    },
    yaxis: {
      autorange: "reversed", tickvals: opinions.map((_, i) => i), showgrid: false, zeroline: false,
      ticktext: opinions.map(({ name, rank }) => {
        const text = `${whole(rank)}  ${short(name, narrow ? 18 : 26)}`;
        return name === candidate ? `<b>${text}</b>` : text;
      }),
      tickfont: { color: colour("ink") },
    },
  }, `The backbone's own ranking: ${opinions.map(({ name, rank, share }) => `${rank} ${name} ${percent(share)}`).join(", ")}.`);
}

/** Equal events of one step fall together; how lately one happened is how strongly it is coloured. */
function marks(past, step) {
  const found = new Map();
  past.step.forEach((when, i) => {
    const key = `${when} ${past.which[i]} ${past.forward[i]}`;
    const mark = found.get(key);
    if (mark) mark.count += 1;
    else found.set(key, { when, which: past.which[i], forward: past.forward[i], lag: step - when, count: 1 });
  });
  return [...found.values()];
}

/** past: columns of a pair's events; shares: "step relation direction" to the part an event has in the score;
    shown: a relation as people read it. */
export function timelineChart(into, past, { clock, step, actor, candidate, relation, shares, shown }) {
  const all = marks(past, step), narrow = isNarrow(into);
  const last = new Map();
  for (const mark of all) last.set(mark.which, Math.max(last.get(mark.which) ?? -1, mark.when));
  // the relation asked for on top, then those that happened last
  const rank = (which) => (past.relation[which] === relation ? Infinity : last.get(which));
  const lanes = [...last.keys()].sort((a, b) => rank(b) - rank(a));
  const lane = new Map(lanes.map((which, i) => [which, i]));
  const first = past.step[0], span = Math.max(1, step - first), fade = Math.max(3, span / 5);
  const dates = clock.kind === "date";
  const at = (when) => (dates ? label(clock, when) : clock.origin + when * clock.unit);
  const side = (forward) => {
    const own = all.filter((mark) => mark.forward === forward);
    const part = (mark) => shares.get(`${mark.when} ${past.relation[mark.which]} ${forward ? 0 : 1}`);
    return {
      type: "scatter", mode: "markers",
      name: forward ? `${short(actor, 24)} → ${short(candidate, 24)}` : `${short(candidate, 24)} → ${short(actor, 24)}`,
      x: own.map((mark) => at(mark.when)), y: own.map((mark) => lane.get(mark.which) + (forward ? -0.17 : 0.17)),
      marker: {
        symbol: forward ? "triangle-right" : "triangle-left", color: colour(forward ? "forward" : "backward"),
        size: own.map((mark) => 10 + 3 * Math.log2(mark.count)),
        opacity: own.map((mark) => 0.22 + 0.78 * Math.exp(-(mark.lag - 1) / fade)),
        line: { color: colour("ink"), width: own.map((mark) => (part(mark) === undefined ? 0 : 1.6)) },
      },
      customdata: own.map((mark) => [
        safe(shown(past.relation[mark.which])), label(clock, mark.when), whole(mark.lag), mark.lag === 1 ? "" : "s",
        mark.count > 1 ? `, ${mark.count} times` : "", part(mark) === undefined ? "" : `<br>part of the score ${signed(part(mark), 3)}`,
      ]),
      hovertemplate: "%{customdata[0]}<br>%{customdata[1]}, %{customdata[2]} step%{customdata[3]} before%{customdata[4]}%{customdata[5]}<extra></extra>",
    };
  };
  const words = `${whole(past.total)} events between ${actor} and ${candidate}: ${lanes.map((which) => {
    const own = past.which.filter((w) => w === which).length;
    return `${shown(past.relation[which])} ${own} times, last at ${label(clock, last.get(which))}`;
  }).join("; ")}.`;
  // the legend's marks are those of the newest events
  const sides = [side(true), side(false)];
  const keys = sides.map(({ name, marker: { symbol, color } }) => (
    { type: "scatter", mode: "markers", name, x: [null], y: [null], marker: { symbol, color, size: 11 }, hoverinfo: "skip" }
  ));
  return draw(into, [...sides.map((one) => ({ ...one, showlegend: false })), ...keys], {
    height: 96 + (lanes.length > 8 ? 26 : 34) * lanes.length, showlegend: true, margin: { l: 8, r: 18, t: 4, b: 8 },
    legend: LEGEND,
    shapes: [{ type: "line", x0: at(step), x1: at(step), y0: 0, y1: 1, yref: "paper", line: { color: colour("accent"), width: 1.5, dash: "dot" } }],
    xaxis: { type: dates ? "date" : "linear", range: timeRange(at, dates, first, step, span), nticks: narrow ? 4 : 8, zeroline: false },
    yaxis: {
      range: [lanes.length - 0.5, -0.5], tickvals: lanes.map((_, i) => i), showgrid: true, zeroline: false, tickfont: { color: colour("ink") },
      ticktext: lanes.map((which) => {
        const text = short(shown(past.relation[which]), narrow ? 16 : 30);
        return past.relation[which] === relation ? `<b>${text}</b>` : text;
      }),
    },
  }, words);
}

function timeRange(at, dates, first, step, span) {
  const [low, high] = [at(first), at(step)];
  if (!dates) return [low - 0.03 * span, high + 0.03 * span];
  const from = Date.parse(low.replace(" ", "T") + (low.length > 10 ? "Z" : "")), to = Date.parse(high.replace(" ", "T") + (high.length > 10 ? "Z" : ""));
  return [from - 0.03 * (to - from), to + 0.03 * (to - from)];
}

export const METHOD_WORDS = {
  backbone: "backbone alone", bridgemem: "with bridgemem", learned: "with learned residual",
};
export const FILTER_WORDS = { raw: "raw", static: "static filter", time: "time-aware filter" };
const METHOD_COLOURS = { backbone: "base", bridgemem: "second", learned: "accent" };

const SHORT_FILTERS = { raw: "raw", static: "static", time: "time-aware" };
const LEGEND = { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", itemclick: false, itemdoubleclick: false };

const ends = (gain) => `${signed(gain[0], 4)} [${signed(gain[1], 4)}, ${signed(gain[2], 4)}]`;
const whiskers = (gains) => ({
  type: "data", symmetric: false, color: colour("ink"), thickness: 1.4, width: 4,
  array: gains.map((gain) => (gain ? gain[2] - gain[0] : 0)), arrayminus: gains.map((gain) => (gain ? gain[0] - gain[1] : 0)),
});

/** measured: figures by method and filter; a residual's whisker is the interval of its gain over the backbone. */
export function filtersChart(into, measured, metric, heading) {
  const filters = [...new Set(measured.map((m) => m.filter))], narrow = isNarrow(into);
  const traces = [...new Set(measured.map((m) => m.method))].map((method) => {
    const own = filters.map((filter) => measured.find((m) => m.filter === filter && m.method === method));
    const value = own.map((m) => m?.metrics[metric] ?? null), gain = own.map((m) => m?.gain[metric]);
    return {
      type: "bar", name: METHOD_WORDS[method], x: filters.map((f) => (narrow ? SHORT_FILTERS : FILTER_WORDS)[f]), y: value,
      marker: { color: colour(METHOD_COLOURS[method]) }, text: value.map((v) => v?.toFixed(3).replace("0.", ".") ?? ""),
      textposition: narrow ? "none" : "inside", insidetextanchor: "start", textangle: 0, constraintext: "none",
      textfont: { color: colour(`on-${METHOD_COLOURS[method]}`) },
      error_y: { ...whiskers(gain), visible: method !== "backbone" },
      customdata: gain.map((g) => (g ? `<br>gain ${ends(g)}` : "")),
      hovertemplate: `${METHOD_WORDS[method]}, %{x}<br>${heading} %{y:.4f}%{customdata}<extra></extra>`,
    };
  });
  const words = measured.map((m) => `${METHOD_WORDS[m.method]}, ${FILTER_WORDS[m.filter]}: ${m.metrics[metric].toFixed(4)}`);
  return draw(into, traces, {
    height: 330, barmode: "group", bargap: 0.28, bargroupgap: 0.08, showlegend: true, legend: LEGEND,
    xaxis: { tickfont: { color: colour("ink") }, showgrid: false, tickangle: 0 },
    yaxis: { title: { text: heading, font: { color: colour("muted"), size: 12 } }, rangemode: "tozero", nticks: 6 },
  }, `${heading} by filter. ${words.join("; ")}.`);
}

/** parts: the gain on the queries of each support, under one filter; the bars lie down where there is no room. */
export function supportChart(into, parts) {
  const places = [...new Set(parts.map((p) => p.support))], narrow = isNarrow(into);
  const queries = places.map((place) => parts.find((p) => p.support === place).queries);
  const total = queries.reduce((sum, n) => sum + n, 0), percent = (n) => `${(100 * n / total).toFixed(n < 0.1 * total ? 1 : 0)}%`;
  const traces = [...new Set(parts.map((p) => p.method))].map((method) => {
    const own = places.map((place) => parts.find((p) => p.support === place && p.method === method));
    const at = places.map((_, i) => i), gain = own.map((p) => p.gain[0]), whisker = whiskers(own.map((p) => p.gain));
    return {
      type: "bar", name: METHOD_WORDS[method], marker: { color: colour(METHOD_COLOURS[method]) },
      ...(narrow ? { orientation: "h", x: gain, y: at, error_x: whisker } : { x: at, y: gain, error_y: whisker }),
      customdata: own.map((p) => [p.support, `${whole(p.queries)} queries, ${percent(p.queries)}`, p.backbone.toFixed(4), ends(p.gain)]),
      hovertemplate: `${METHOD_WORDS[method]}, support %{customdata[0]}<br>%{customdata[1]}<br>backbone MRR %{customdata[2]}<br>gain %{customdata[3]}<extra></extra>`,
    };
  });
  const title = (text) => ({ text, font: { color: colour("muted"), size: 12 } });
  const supports = {
    tickvals: places.map((_, i) => i), tickfont: { color: colour("ink") }, showgrid: false, zeroline: false,
    ticktext: places.map((place, i) => `${place}<br><span style="color:${colour("muted")}">${percent(queries[i])}</span>`),
  };
  const gains = { title: title("gain in MRR"), tickformat: "+.2f", zeroline: true, nticks: narrow ? 4 : 6 };
  return draw(into, traces, {
    height: narrow ? 120 + 52 * places.length : 340, barmode: "group", bargap: 0.28, bargroupgap: 0.08, showlegend: true, legend: LEGEND,
    ...(narrow ? { xaxis: gains, yaxis: { ...supports, autorange: "reversed" } }
      : { xaxis: { ...supports, title: title("support of the answer, and share of the queries") }, yaxis: gains }),
  }, `Gain in MRR by support. ${parts.map((p) => `${METHOD_WORDS[p.method]}, ${p.support}: ${signed(p.gain[0], 4)}`).join("; ")}.`);
}
