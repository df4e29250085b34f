// The second page: how good the run is, from what was measured on it.

import { ask, byId, make, plain, segments, signed, table, whole } from "./ask.js";
import { FILTER_WORDS, METHOD_WORDS, filtersChart, supportChart } from "./charts.js";

const METRICS = { mrr: "MRR", hits1: "Hits@1", hits3: "Hits@3", hits10: "Hits@10" };
const SPLITS = { test: "the test events, which nothing was fitted or chosen on", valid: "the validation events, which choices were made on" };
let quality, metric = "mrr", filter = "time", stratum = "time";

const interval = (gain) => `${signed(gain[0], 4)} [${signed(gain[1], 4)}, ${signed(gain[2], 4)}]`;

export async function showQuality() {
  quality ??= await ask("/explore/quality");
  const known = quality.split !== null;
  for (const card of document.querySelectorAll("#quality .card, #tiles")) card.hidden = !known;
  byId("measured-on").textContent = known
    ? `Measured on ${whole(quality.queries)} queries of ${SPLITS[quality.split]}.`
    : quality.why;
  if (!known) return;
  tiles();
  segments(byId("metric"), "metric", Object.entries(METRICS), metric, (value) => { metric = value; byFilter(); });
  const filters = [...new Set(quality.parts.map((part) => part.filter))];
  segments(byId("support-filter"), "filter", filters.map((f) => [f, FILTER_WORDS[f]]), filter, (value) => { filter = value; bySupport(); });
  byFilter();
  bySupport();
  byId("strata").hidden = !quality.strata.length;
  const under = [...new Set(quality.strata.map((one) => one.filter))];
  segments(byId("strata-filter"), "strata", under.map((f) => [f, FILTER_WORDS[f]]), stratum, (value) => { stratum = value; byStratum(); });
  byStratum();
}

function byStratum() {
  const own = quality.strata.filter((one) => one.filter === stratum), methods = Object.keys(own[0]?.rows ?? {});
  table(byId("strata-table"), ["stratum", "queries", "share", ...methods.map((m) => METHOD_WORDS[m] ?? m), "gain [95 %]"], own.map((one) => [
    one.stratum, whole(one.queries), `${(100 * one.share).toFixed(1)}%`, ...methods.map((m) => plain(one.rows[m].mrr, 4)), interval(one.gain),
  ]));
}

function tiles() {
  const own = quality.measured.filter((m) => m.filter === "time"), before = own.find((m) => m.method === "backbone");
  const best = own.filter((m) => m.method !== "backbone").at(-1);
  byId("tiles").replaceChildren(...Object.entries(METRICS).map(([name, heading]) => {
    const [gain, low, high] = best.gain[name];
    return make(
      "div", { class: "tile" },
      make("span", { class: "muted small" }, `${heading}, time-aware`),
      make("strong", {}, best.metrics[name].toFixed(3)),
      make("span", { class: "small" }, `from ${before.metrics[name].toFixed(3)}  `,
        make("b", { class: gain < 0 ? "down" : "up" }, signed(gain, 3))),
      make("span", { class: "muted small" }, `95 %: ${signed(low, 3)} to ${signed(high, 3)}${best.remark}`),
    );
  }));
}

function byFilter() {
  filtersChart(byId("filters"), quality.measured, metric, METRICS[metric]);
  table(byId("figures"), ["filter, method", ...Object.values(METRICS), `gain in ${METRICS[metric]} [95 %]`], quality.measured.map((m) => [
    `${FILTER_WORDS[m.filter]}, ${METHOD_WORDS[m.method]}${m.remark}`,
    ...Object.keys(METRICS).map((name) => plain(m.metrics[name], 4)), m.gain[metric] ? interval(m.gain[metric]) : "",
  ]));
}

function bySupport() {
  const parts = quality.parts.filter((part) => part.filter === filter);
  supportChart(byId("support"), parts);
  table(byId("support-table"), ["support, method", "queries", "backbone MRR", "gain in MRR [95 %]"], parts.map((p) => [
    `${p.support}, ${METHOD_WORDS[p.method]}`, whole(p.queries), plain(p.backbone, 4), interval(p.gain),
  ]));
}
