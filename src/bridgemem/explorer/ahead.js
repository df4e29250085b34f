// What happens between two, whom an actor deals with, whether and when: one chart and one table.

import { ask, byId, make, table, whole } from "./ask.js";
import { barChart, percent } from "./probability.js";

const PATHS = { what: "/v1/what", whom: "/v1/partners", whether: "/v1/whether" };
export const AHEAD = Object.keys(PATHS);

/** Where a query of this kind is sent, and its body; null while a name is missing. */
export function request({ kind, actor, relation, inverse, other, horizon }, top) {
  if (!actor) return null;
  if (kind === "whom") return [PATHS.whom, { actor, horizon, top }];
  if (kind === "what") return other ? [PATHS.what, { subject: actor, object: other, horizon, top }] : null;
  if (!relation && !other) return null;
  const [subject, object] = inverse ? [other, actor] : [actor, other];
  const named = Object.entries({ subject, relation, object }).filter(([, name]) => name);
  return [PATHS.whether, { ...Object.fromEntries(named), horizon }];
}

const event = (one, shown) => `${one.subject} → ${shown(one.relation)} → ${one.object}`;
const steps = (n) => (n === 1 ? "in this step" : `within ${whole(n)} steps`);

function shape(kind, found, shown) {
  const rows = found.candidates ?? found.within;
  if (kind === "what") {
    return {
      title: "What happens between the two", chart: "probability, given that the two interact",
      bars: rows.map((c) => ({ name: event(c, shown), value: c.p_given_event, note: `${percent(c.p_event)} ${steps(found.horizon)}` })),
      header: ["event", "p_given_event", "p_event"], cells: rows.map((c) => [event(c, shown), percent(c.p_given_event), percent(c.p_event)]),
    };
  }
  if (kind === "whom") {
    return {
      title: "Whom it deals with", chart: `probability that the two interact ${steps(found.horizon)}`,
      bars: rows.map((c) => ({ name: c.name, value: c.p_event, note: `likeliest: ${event(c, shown)}` })),
      header: ["partner", "p_event", "likeliest event", "p_given_event"],
      cells: rows.map((c) => [c.name, percent(c.p_event), event(c, shown), percent(c.p_given_event)]),
    };
  }
  return {
    title: "Whether and when", chart: "probability that it has happened by then",
    bars: rows.map((w) => ({ name: w.steps === 1 ? "1 step" : `${whole(w.steps)} steps`, value: w.p_event, note: `until ${w.until}`, strong: w.steps === found.horizon })),
    header: ["steps", "until", "p_event"], cells: rows.map((w) => [whole(w.steps), w.until, percent(w.p_event)]),
  };
}

/** The answer in one sentence. */
function sentence(kind, found) {
  const n = found.past_events, before = n ? `There ${n === 1 ? "was" : "were"} ${whole(n)} such event${n === 1 ? "" : "s"} before.` : "It never happened before.";
  if (kind === "whom") return `Of those that ${found.subject} dealt with before.`;
  if (kind === "what") return `The two interact ${steps(found.horizon)} with ${percent(found.p_event)}. ${before.replace(/such (events?)/, "$1 between them").replace("It never happened", "They never interacted")}`;
  const late = found.median === null ? "" : ` As likely as not within ${whole(found.median)} step${found.median === 1 ? "" : "s"}.`;
  return `${percent(found.p_event)} ${steps(found.horizon)}.${late} ${before}`;
}

export function showAhead(kind, found, shown) {
  const { title, chart, bars, header, cells } = shape(kind, found, shown);
  byId("ahead-title").textContent = title;
  byId("ahead-sentence").textContent = sentence(kind, found);
  byId("ahead-chart").hidden = !bars.length;
  if (bars.length) barChart(byId("ahead-chart"), bars, chart);
  table(byId("ahead-table"), header, cells);
  byId("ahead-meaning").textContent = [found.meaning, found.remark].filter(Boolean).join(" ");
}

/** What reasons are asked for: of the event, or of the two; of the likeliest answer where several are listed. */
function toldAbout(kind, { subject, relation, object, candidates }) {
  if (kind === "whether") return [{ subject, relation, object }];
  const best = candidates[0];
  if (kind === "whom") return best ? [{ subject, object: best.name }] : [];
  return [{ subject, object }, ...(best ? [{ subject: best.subject, relation: best.relation, object: best.object }] : [])];
}

/** Plain sentences about what happened before; none where an assumed name is the only one of its kind. */
export async function showReasons(kind, found, signal) {
  const list = byId("ahead-reasons"), sentences = new Set();
  list.replaceChildren();
  for (const names of toldAbout(kind, found)) {
    const params = Object.fromEntries(Object.entries({ ...names, step: found.step }).filter(([, value]) => value != null));
    const told = await ask("/explore/reasons", { params, signal }).catch((problem) => {
      if (problem.status === 404) return [];
      throw problem;
    });
    for (const sentence of told) sentences.add(sentence);
  }
  list.replaceChildren(...[...sentences].map((sentence) => make("li", {}, sentence)));
}

/** What assumed events change, whatever was asked; nothing where none are assumed. */
export function showChanges(assumed) {
  byId("changes").hidden = !assumed;
  if (!assumed) return;
  byId("changes-title").textContent = `As if ${whole(assumed.events)} event${assumed.events === 1 ? "" : "s"} had happened`;
  byId("changes-remark").textContent = assumed.remark ?? "";
  byId("changes-probability").textContent = `${assumed.probability} without and with them`;
  table(byId("changes-table"), ["answer", "plain", "assumed"], assumed.changes.map((c) => [
    c.answer, percent(c.plain), make("b", { class: c.assumed > c.plain ? "up" : c.assumed < c.plain ? "down" : null }, percent(c.assumed)),
  ]));
}
