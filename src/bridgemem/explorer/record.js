// The page of the track record: what issued forecasts were worth, next to naive rules.

import { ask, byId, make, segments, table, whole } from "./ask.js";
import { percent } from "./probability.js";

const GROUPINGS = [["all", "All"], ["month", "By month"], ["relation", "By relation"], ["horizon", "By horizon"]];
let by = "all";

export async function showRecord() {
  segments(byId("record-by"), "record-by", GROUPINGS, by, (value) => { by = value; showRecord(); });
  const found = await ask("/explore/record", { params: { by } });
  byId("record-asked").textContent = found.forecasts
    ? `${whole(found.forecasts)} issued forecasts with ${whole(found.claims)} probabilities: ${whole(found.open)} still open, ${whole(found.void)} void.`
    : found.why;
  byId("record-card").hidden = !found.scores.length;
  byId("record-tiles").replaceChildren(...found.overall.map((one) => make("div", { class: "tile" },
    make("span", { class: "muted small" }, `Brier score of ${one.probability}, lower is better`),
    make("strong", {}, one.brier.toFixed(3)),
    make("span", { class: "small" }, `base rate ${one.brier_base_rate.toFixed(3)}, persistence ${one.brier_persistence.toFixed(3)}`),
    make("span", { class: "small muted" }, `${whole(one.claims)} probabilities, ${percent(one.came_true)} came true`),
  )));
  table(byId("record-table"), ["probability, group", "claims", "came true", "Brier", "base rate", "persistence", "log score", "calibration error"],
    found.scores.map((one) => [
      `${one.probability}, ${one.group}`, whole(one.claims), percent(one.came_true), one.brier.toFixed(4), one.brier_base_rate.toFixed(4),
      one.brier_persistence.toFixed(4), one.log_score.toFixed(4), one.calibration_error.toFixed(4),
    ]));
}
