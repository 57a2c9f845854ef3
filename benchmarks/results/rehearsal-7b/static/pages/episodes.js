"use strict";
// Page "Episodes": filters, sorting, pages.

arpo.episodes = (() => {
  const { h, table, filters, select, input } = arpo.dom;
  const { number } = arpo.words;
  const { link } = arpo.app;
  const COLUMNS = [
    ["", "Episode", ""],
    ["task", "Task", "wide"],
    ["", "Played in", "minor"],
    ["score", "Score", "n"],
    ["", "End", "minor"],
    ["steps", "Steps", "n minor"],
    ["", "Tokens", "n minor"],
    ["", "Replayed in", "minor"],
  ];

  const YES_NO = [
    ["1", "yes"],
    ["0", "no"],
  ];

  async function render(context) {
    const { query } = context;
    const answer = await arpo.api.get(["s", context.source, "episodes"], query);
    const pages = Math.max(1, Math.ceil(answer.total / answer.size)),
      page = answer.page;
    const turn = (to, label) =>
      h(
        "button",
        {
          type: "button",
          "data-key": label,
          disabled: to < 0 || to >= pages,
          onclick: () => context.setQuery(context, { page: to || "" }),
        },
        label,
      );
    return [
      h("h1", {}, "Episodes ", h("small", {}, number(answer.total))),
      filterForm(context, answer),
      answer.episodes.length
        ? episodeTable(answer.episodes, context, context.source)
        : h("p", { class: "notice" }, "No episode matches these filters."),
      pages > 1
        ? h(
            "nav",
            { class: "pages", "aria-label": "Pages of episodes" },
            turn(page - 1, "Previous"),
            h("span", {}, `page ${page + 1} of ${number(pages)}`),
            turn(page + 1, "Next"),
          )
        : null,
    ];
  }

  function filterForm(context, answer) {
    const { query } = context;
    const set = (name) => (value) => context.setQuery(context, { [name]: value, page: "" });
    const now = (name) => query[name] || "";
    const choice = (name, label, options) =>
      select(`filter-${name}`, label, [["", "all"], ...options], now(name), set(name));
    const text = (name, label) => input(`filter-${name}`, label, now(name), set(name));
    const score = (name, label) =>
      input(`filter-${name}`, label, now(name), set(name), { type: "number", min: 0, max: 1, step: 0.1 });
    const phases = (answer.phases || []).map((one) => [one.phase, `${one.title} (${number(one.episodes)})`]);
    const stops = (answer.stops || []).map((stop) => [stop, stop.replaceAll("_", " ")]);
    return filters(
      "Filters",
      text("text", "Text in thought or answer"),
      text("task", "Task"),
      choice("phase", "Played in", phases),
      choice("stop", "End", stops),
      choice("solved", "Solved", YES_NO),
      choice("replayed", "Replayed", YES_NO),
      choice("malformed", "Malformed", YES_NO),
      score("min_score", "Score from"),
      score("max_score", "to"),
      Object.keys(query).length > 0 &&
        h("a", { class: "button", href: link(["s", context.source, "episodes"]) }, "Clear"),
    );
  }

  // source: null for rows of several runs, which then have a column with their run.
  function episodeTable(rows, context, source) {
    const heads = COLUMNS.map((column) => sortHead(context, ...column));
    return table(
      source ? heads : [["Run"], ...heads],
      rows.map((row) => line(row, source || row.source, !source)),
    );
  }

  function sortHead(context, name, label, kind) {
    if (!name || context.page !== "episodes") return [label, kind];
    const sort = context.query.sort || "";
    const up = sort === name,
      on = up || sort === `-${name}`;
    const choose = () => context.setQuery(context, { sort: up ? `-${name}` : name, page: "" });
    return h(
      "th",
      { scope: "col", class: kind, "aria-sort": on ? (up ? "ascending" : "descending") : null },
      h(
        "button",
        { type: "button", "data-key": `sort ${name}`, onclick: choose },
        label,
        h("span", { "aria-hidden": "true" }, on ? (up ? " ↑" : " ↓") : ""),
      ),
    );
  }

  function line(row, source, named) {
    return h(
      "tr",
      {},
      named ? h("td", {}, source) : null,
      h(
        "td",
        {},
        h("a", { class: "name", href: link(["s", source, "episode", row.episode]) }, row.episode),
        row.shown ? null : h("small", {}, "screenshots not stored"),
      ),
      h(
        "td",
        { class: "task" },
        h("a", { href: link(["s", source, "task", row.task]) }, row.instruction || row.task),
        row.snippet ? h("small", { class: "snippet" }, row.snippet) : h("small", {}, row.task),
      ),
      h(
        "td",
        {},
        row.batch
          ? h("a", { href: link(["s", source, "batch", row.batch]) }, row.phase_title)
          : row.phase_title,
      ),
      h("td", { class: `n ${row.solved ? "good" : "bad"}` }, number(row.score)),
      h("td", { class: row.malformed ? "bad" : null }, (row.stop || "").replaceAll("_", " ")),
      h("td", { class: "n" }, number(row.steps)),
      h("td", { class: "n" }, number(row.tokens)),
      h(
        "td",
        {},
        (row.replayed_in || []).map((batch, index) => [
          index ? ", " : "",
          h("a", { href: link(["s", source, "batch", batch]) }, `batch ${batch}`),
        ]),
      ),
    );
  }

  arpo.app.pages.episodes = { title: () => "Episodes", tab: "episodes", render };
  return { table: episodeTable };
})();
