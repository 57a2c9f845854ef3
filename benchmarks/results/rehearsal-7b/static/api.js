"use strict";
// Data of the server, or of an export: the same paths and the same JSON.

arpo.api = (() => {
  const exported = window.ARPO_EXPORT || null;

  // get("s", "desk", "batches", 3) asks for api/s/desk/batches/3.
  function path(...parts) {
    return "/api/" + parts.map((part) => encodeURIComponent(part)).join("/");
  }

  async function get(parts, query) {
    const address = path(...parts);
    if (exported) return fromExport(address, query || {});
    const words = new URLSearchParams(
      Object.entries(query || {}).filter(([, value]) => value !== "" && value !== undefined),
    );
    const answer = await fetch("." + address + (words.size ? "?" + words : ""), {
      credentials: "same-origin",
    });
    const value = await answer.json().catch(() => ({ error: `${answer.status} ${answer.statusText}` }));
    if (!answer.ok) throw new Error(value.error || `${answer.status} ${answer.statusText}`);
    return value;
  }

  function fromExport(address, query) {
    if (!(address in exported))
      throw new Error("This export does not contain it: open the run with `arpo view`.");
    const value = exported[address];
    if (!Array.isArray(value.episodes) || !("total" in value)) return structuredClone(value);
    const rows = value.episodes.filter((row) => matches(row, query));
    const size = 50,
      page = Number(query.page || 0);
    return {
      ...value,
      total: rows.length,
      page,
      size,
      episodes: sorted(rows, query.sort).slice(page * size, (page + 1) * size),
    };
  }

  const YES = { 1: true, 0: false };

  // The filters of the server, for the rows of an export. Texts of answers are not in its list.
  function matches(row, query) {
    const equal = ["task", "stop", "phase", "group"].every(
      (name) => !query[name] || row[name] === query[name],
    );
    const flags = ["solved", "malformed", "shown"].every(
      (name) => !(query[name] in YES) || row[name] === YES[query[name]],
    );
    const replayed = !(query.replayed in YES) || row.replayed_in.length > 0 === YES[query.replayed];
    const score =
      (!query.min_score || row.score >= Number(query.min_score)) &&
      (!query.max_score || row.score <= Number(query.max_score));
    const batch = !query.batch || row.batch === Number(query.batch);
    const words = `${row.episode} ${row.task} ${row.instruction || ""}`.toLowerCase();
    return (
      equal &&
      flags &&
      replayed &&
      score &&
      batch &&
      (!query.text || words.includes(query.text.toLowerCase()))
    );
  }

  function sorted(rows, sort) {
    const name = (sort || "order").replace("-", "");
    const sign = (sort || "").startsWith("-") ? -1 : 1;
    if (name === "order") return sign < 0 ? [...rows].reverse() : rows;
    return [...rows].sort((a, b) => sign * (a[name] < b[name] ? -1 : a[name] > b[name] ? 1 : 0));
  }

  const ANSWERS = { batch: "batches", group: "groups", episode: "episodes", task: "tasks" };

  // Whether the answer behind a view is there: #/s/desk/batch/3 needs /api/s/desk/batches/3.
  function contains(address) {
    const [, first, source, page, name] = address.split("?")[0].split("/");
    if (exported && first === "comparison") return `/api/comparison/${source}` in exported;
    if (!exported || !Object.hasOwn(ANSWERS, page) || !name) return true;
    return `/api/s/${source}/${ANSWERS[page]}/${name}` in exported;
  }

  // Address of a screenshot; "" if it is not stored any more.
  function shotAddress(shot, width) {
    if (!shot || !shot.url) return "";
    if (exported) return exported[shot.url] ? exported[shot.url].file : "";
    return "." + shot.url + (width ? `?w=${width}` : "");
  }

  // Address of an episode as a GIF.
  const gifAddress = (source, episode) => "." + path("s", source, "episodes", episode, "gif");

  return { get, shotAddress, gifAddress, contains, exported: exported !== null };
})();
