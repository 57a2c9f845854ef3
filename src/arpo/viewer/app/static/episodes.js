"use strict";
// Pages "Episodes" (filters, sorting, pages) and "Search" (all runs).

arpo.episodes = (() => {
  const { h } = arpo.dom;
  const { number, count } = arpo.words;
  const { link } = arpo.app;
  const COLUMNS = [
    ["", "Episode", ""],
    ["task", "Task", "wide"],
    ["", "Played in", ""],
    ["score", "Score", "n"],
    ["", "End", ""],
    ["steps", "Steps", "n"],
    ["", "Tokens", "n"],
    ["", "Replayed in", ""],
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
      filters(context, answer),
      answer.episodes.length
        ? table(answer.episodes, context, context.source)
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

  function filters(context, answer) {
    const { query } = context;
    const set = (name) => (event) => context.setQuery(context, { [name]: event.target.value, page: "" });
    const choice = (name, label, options) =>
      h(
        "label",
        {},
        h("span", {}, label),
        h(
          "select",
          { id: `filter-${name}`, onchange: set(name) },
          [["", "all"], ...options].map(([value, text]) =>
            h("option", { value, selected: (query[name] || "") === value }, text),
          ),
        ),
      );
    const field = (name, label, type, more) =>
      h(
        "label",
        {},
        h("span", {}, label),
        h("input", { id: `filter-${name}`, type, value: query[name] || "", onchange: set(name), ...more }),
      );
    const phases = (answer.phases || []).map((one) => [one.phase, `${one.title} (${number(one.episodes)})`]);
    return h(
      "form",
      {
        class: "filters",
        role: "search",
        "aria-label": "Filters",
        onsubmit: (event) => event.preventDefault(),
      },
      field("text", "Text in thought or answer", "text", { maxlength: 200 }),
      field("task", "Task", "text", { maxlength: 200 }),
      choice("phase", "Played in", phases),
      choice(
        "stop",
        "End",
        (answer.stops || []).map((stop) => [stop, stop.replaceAll("_", " ")]),
      ),
      choice("solved", "Solved", [
        ["1", "yes"],
        ["0", "no"],
      ]),
      choice("replayed", "Replayed", [
        ["1", "yes"],
        ["0", "no"],
      ]),
      choice("malformed", "Malformed", [
        ["1", "yes"],
        ["0", "no"],
      ]),
      field("min_score", "Score from", "number", { min: 0, max: 1, step: 0.1 }),
      field("max_score", "to", "number", { min: 0, max: 1, step: 0.1 }),
      Object.keys(query).length
        ? h("a", { class: "button", href: link(["s", context.source, "episodes"]) }, "Clear")
        : null,
    );
  }

  function table(rows, context, source) {
    const sort = context.query.sort || "";
    const head = ([name, label, kind]) => {
      if (!name || context.page !== "episodes") return h("th", { scope: "col", class: kind }, label);
      const on = sort === name || sort === `-${name}`;
      return h(
        "th",
        { scope: "col", class: kind, "aria-sort": on ? (sort === name ? "ascending" : "descending") : null },
        h(
          "button",
          {
            type: "button",
            "data-key": `sort ${name}`,
            onclick: () => context.setQuery(context, { sort: sort === name ? `-${name}` : name, page: "" }),
          },
          label,
          h("span", { "aria-hidden": "true" }, on ? (sort === name ? " ↑" : " ↓") : ""),
        ),
      );
    };
    return h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "rows" },
        h("thead", {}, h("tr", {}, source ? null : h("th", { scope: "col" }, "Run"), COLUMNS.map(head))),
        h(
          "tbody",
          {},
          rows.map((row) => line(row, source || row.source, !source)),
        ),
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

  async function renderSearch(context) {
    const text = context.query.text || "";
    const answer = text ? await arpo.api.get(["search"], { text }) : { total: 0, results: [] };
    return [
      h(
        "h1",
        {},
        "Search ",
        h("small", {}, text ? `${count(answer.total, "episode")} with “${text}”` : "type a text above"),
      ),
      answer.results.length ? table(answer.results, context, null) : null,
    ];
  }

  arpo.app.pages.episodes = { title: () => "Episodes", tab: "episodes", render };
  arpo.app.pages.search = { title: () => "Search", render: renderSearch };
  return { table };
})();
