"use strict";
// Pages "Batches" and "Batch": the groups of a batch as rows of dots.

arpo.batches = (() => {
  const { h, table } = arpo.dom;
  const { number, percent } = arpo.words;
  const { link } = arpo.app;
  const { dotLink, legend } = arpo.dots;

  const HEADS = [
    ["Batch", "n"],
    ["Solved", "wide minor"],
    ["Success", "n"],
    ["Groups", "n"],
    ["Rescued by replay", "n"],
    ["Without signal", "n"],
    ["Dropped", "n minor"],
    ["Not played", "n minor"],
  ];

  async function renderAll(context) {
    const { batches } = await arpo.api.get(["s", context.source, "batches"]);
    const rows = [...batches].reverse().map((one) => batchRow(context, one));
    return [
      h("h1", {}, "Batches ", h("small", {}, number(batches.length))),
      batches.length ? table(HEADS, rows) : noBatch(context),
    ];
  }

  function noBatch(context) {
    const episodes = h("a", { href: link(["s", context.source, "episodes"]) }, "Episodes");
    return h("p", { class: "notice" }, "No batch yet. ", episodes);
  }

  function batchRow(context, one) {
    const share = one.episodes ? one.solved / one.episodes : NaN;
    const count = (value, kind) => h("td", { class: `n ${value ? kind : "dim"}` }, number(value));
    return h(
      "tr",
      {},
      h(
        "td",
        { class: "n" },
        h("a", { href: link(["s", context.source, "batch", one.batch]) }, `batch ${number(one.batch)}`),
      ),
      h("td", { class: "wide" }, bar(one.solved, one.episodes)),
      h("td", { class: "n" }, percent(share)),
      h("td", { class: "n" }, number(one.groups)),
      count(one.rescued, "accent"),
      count(one.without_signal, ""),
      count(one.dropped, "bad"),
      count(one.failed, "bad"),
    );
  }

  function bar(part, whole) {
    const width = `${whole ? (100 * part) / whole : 0}%`;
    return h(
      "div",
      { class: "bar", role: "img", "aria-label": `${part} of ${whole} solved` },
      h("i", { css: { width } }),
    );
  }

  const HEADS_OF_GROUPS = [["Order", "n minor"], ["Task"], ["Episodes"], ["Solved", "n"], ["Signal", "n minor"], ["Note", "minor"]];
  const numbered = (groups) => groups.map((group, place) => ({ ...group, place }));
  const share = (group) => group.solved / (group.episodes_count || 1);
  const ORDERS = {
    order: ["Order", (a, b) => a.place - b.place],
    task: ["Task", (a, b) => (a.task < b.task ? -1 : a.task > b.task ? 1 : 0)],
    success: ["Solved", (a, b) => share(a) - share(b)],
    signal: ["Signal", (a, b) => (b.sigma || 0) - (a.sigma || 0)],
  };

  async function render(context) {
    const batch = await arpo.api.get(["s", context.source, "batches", context.parts[0]]);
    context.neighbours = { ArrowLeft: batch.previous, ArrowRight: batch.next };
    const sort = Object.hasOwn(ORDERS, context.query.sort) ? context.query.sort : "order";
    const down = context.query.down === "1";
    const groups = numbered(batch.groups).sort(ORDERS[sort][1]);
    if (down) groups.reverse();
    const head = (name, kind) => sortHead(context, name, kind, sort, down);
    const heads = [
      head("order", "n minor"),
      head("task", ""),
      ["Episodes"],
      head("success", "n"),
      head("signal", "n minor"),
      ["Note", "minor"],
    ];
    const to = (number_) => number_ && link(["s", context.source, "batch", number_]);
    return [
      arpo.heading(`Batch ${number(batch.batch)}`, to(batch.previous), to(batch.next), "batch"),
      facts(batch.metrics),
      batch.note && h("p", { class: "dim" }, batch.note),
      list(context, groups, heads),
    ];
  }

  // Groups as rows of dots.
  function list(context, groups, heads = HEADS_OF_GROUPS) {
    return [
      legend(),
      table(
        heads,
        groups.map((group) => groupRow(context, group)),
        { kind: "groups" },
      ),
    ];
  }

  function sortHead(context, name, kind, sort, down) {
    const on = sort === name;
    const choose = () => context.setQuery(context, { sort: name, down: on && !down ? "1" : "" });
    return h(
      "th",
      { scope: "col", class: kind, "aria-sort": on ? (down ? "descending" : "ascending") : null },
      h(
        "button",
        { type: "button", "data-key": `sort ${name}`, onclick: choose },
        ORDERS[name][0],
        h("span", { "aria-hidden": "true" }, on ? (down ? " ↓" : " ↑") : ""),
      ),
    );
  }

  function groupRow(context, group) {
    const to = (page, name) => link(["s", context.source, page, name]);
    const rescued = group.dots.some((dot) => dot.kind === "replayed");
    return h(
      "tr",
      {},
      h("td", { class: "n dim" }, group.place + 1),
      h(
        "td",
        { class: "task" },
        h("a", { href: to("group", group.group) }, group.instruction || group.task),
        h("small", {}, h("a", { href: to("task", group.task) }, group.task)),
      ),
      h(
        "td",
        { class: "dots" },
        group.dots.map((dot) => dotLink(context, dot)),
      ),
      h("td", { class: "n" }, `${group.solved}/${group.episodes_count}`),
      h("td", { class: group.signal ? "n" : "n dim" }, signal(group)),
      h(
        "td",
        { class: "note" },
        group.dropped && h("div", { class: "bad" }, `not trained on: ${group.dropped}`),
        rescued && h("div", { class: "accent" }, "rescued by replay"),
      ),
    );
  }

  const signal = (group) =>
    group.signal ? `σ ${number(group.sigma, 2)}` : group.signal === false ? "none" : "";

  const FACTS = [
    ["success", "solved", percent],
    ["reward", "reward", number],
    ["without_signal", "without signal", number],
    ["rescued", "rescued", number],
    ["replay_size", "in the replay buffer", number],
    ["entropy", "entropy", number],
    ["clip_fraction", "clipped", percent],
    ["loss", "loss", number],
  ];

  function facts(metrics) {
    const known = FACTS.filter(([name]) => typeof metrics?.[name] === "number");
    const fact = ([name, label, format]) =>
      h("div", {}, h("dt", {}, label), h("dd", {}, format(metrics[name])));
    return known.length ? h("dl", { class: "facts" }, known.map(fact)) : null;
  }

  function keys(event, context) {
    const goal = context.neighbours?.[event.key];
    if (goal) location.hash = link(["s", context.source, "batch", goal]);
  }

  const title = (context) => `Batch ${context.parts[0]}`;
  arpo.app.pages.batches = { title: () => "Batches", tab: "batches", render: renderAll };
  arpo.app.pages.batch = { title, tab: "batches", render, keys };
  return { groups: (context, batch) => list(context, numbered(batch.groups)) };
})();
