"use strict";
// Pages "Tasks" and "Task": success over time, and the episodes before and after training beside each other.

arpo.tasks = (() => {
  const { h, table, filters, select, input } = arpo.dom;
  const { number, percent } = arpo.words;
  const { link } = arpo.app;

  const known = (value) => value !== null && value !== undefined;
  const rate = (task) => (task.trained ? task.solved / task.trained : null);
  const ORDERS = {
    hardest: ["Hardest first", null],
    change: ["Largest change", (a, b) => Math.abs(b.change ?? 0) - Math.abs(a.change ?? 0)],
    loss: ["Most forgotten", (a, b) => (a.change ?? 0) - (b.change ?? 0)],
    rescued: ["Most rescued", (a, b) => b.rescued - a.rescued],
    task: ["Name", (a, b) => (a.task < b.task ? -1 : 1)],
  };

  const HEADS = [
    ["Task"],
    ["Set", "minor"],
    ["Before", "n"],
    ["After", "n"],
    ["Change", "n"],
    ["In training", "n minor"],
    ["Over time", "minor"],
    ["Training episodes", "n minor"],
    ["Rescued", "n minor"],
    ["Not played", "n minor"],
  ];
  const SHOWN = 100; // tasks of a list at first

  async function render(context) {
    const answer = await arpo.api.get(["s", context.source, "tasks"]);
    const { set: chosenSet = "", sort = "hardest", name = "", family = "" } = context.query;
    const families = [...new Set(answer.tasks.flatMap((task) => task.families))].sort();
    const sets = [...new Set(answer.tasks.map((task) => task.task_set).filter(Boolean))];
    const tasks = answer.tasks.filter(
      (task) =>
        (!chosenSet || task.task_set === chosenSet) &&
        (!family || task.families.includes(family)) &&
        `${task.task} ${task.instruction || ""}`.toLowerCase().includes(name.toLowerCase()),
    );
    if (Object.hasOwn(ORDERS, sort) && ORDERS[sort][1]) tasks.sort(ORDERS[sort][1]);
    const set = (key) => (value) => context.setQuery(context, { [key]: value });
    const all = ["", "all"];
    const grouped = families.length > 1 && !["set", "sort", "name", "family", "all"].some((key) => context.query[key]);
    const here = (query) => link(["s", context.source, "tasks"], query);
    return [
      h("h1", {}, "Tasks ", h("small", {}, number(tasks.length), grouped && ` of ${number(families.length)} kinds`)),
      filters(
        "Filters",
        input("tasks-name", "Name or instruction", name, set("name")),
        families.length > 1 &&
          select("tasks-family", "Kind", [all, ...families.map((one) => [one, one])], family, set("family")),
        select("tasks-set", "Set", [all, ...sets.map((one) => [one, one])], chosenSet, set("set")),
        select(
          "tasks-sort",
          "Order",
          Object.entries(ORDERS).map(([key, [label]]) => [key, label]),
          sort,
          set("sort"),
        ),
        grouped && h("a", { class: "button", href: here({ all: "1" }) }, "All tasks"),
        !grouped && families.length > 1 && h("a", { class: "button", href: here({}) }, "By kind"),
      ),
      grouped ? kindTable(answer, here) : limited(context, tasks),
    ];
  }

  // The first tasks of a long list, and a button for the others.
  function limited(context, tasks) {
    const shown = context.query.all === "every" ? tasks : tasks.slice(0, SHOWN);
    const more = () => context.setQuery(context, { all: "every" });
    return [
      list(context, shown),
      shown.length < tasks.length &&
        h("p", { class: "pages" }, h("button", { type: "button", onclick: more }, `Show all ${number(tasks.length)} tasks`)),
    ];
  }

  const sum = (values) => values.reduce((total, value) => total + value, 0);

  // One row for each goal family or domain: success before and after training, and in training.
  function kindTable({ kinds: evaluated, tasks }, here) {
    const found = new Map(evaluated.map((one) => [one.kind, one]));
    const groups = new Map();
    for (const task of tasks)
      for (const kind of task.families.length ? task.families : [OTHERS])
        groups.set(kind, [...(groups.get(kind) || []), task]);
    const rows = [...groups].map(([kind, of]) => {
      const trained = sum(of.map((task) => task.trained));
      const { before = null, after = null } = found.get(kind) || {};
      return { kind, of, before, after, trained, rate: trained ? sum(of.map((task) => task.solved)) / trained : null };
    });
    const change = (one) => (known(one.before) && known(one.after) ? one.after - one.before : null);
    rows.sort((a, b) => (change(b) ?? -9) - (change(a) ?? -9) || (a.kind < b.kind ? -1 : 1));
    const row = (one) =>
      h(
        "tr",
        {},
        h("td", {}, one.kind === OTHERS ? one.kind : h("a", { href: here({ family: one.kind }) }, one.kind)),
        rateCell(one.before),
        rateCell(one.after),
        changeCell(change(one)),
        rateCell(one.rate),
        h("td", { class: "n" }, number(one.of.length)),
        h("td", { class: "n" }, number(one.trained)),
        h("td", { class: "n" }, number(sum(one.of.map((task) => task.rescued)))),
      );
    return table(KIND_HEADS, rows.map(row));
  }

  const OTHERS = "other tasks";
  const KIND_HEADS = [
    ["Kind"],
    ["Before", "n"],
    ["After", "n"],
    ["Change", "n"],
    ["In training", "n"],
    ["Tasks", "n"],
    ["Training episodes", "n minor"],
    ["Rescued", "n minor"],
  ];

  // Success by goal family or domain, over all evaluated tasks.
  function kinds(rows) {
    const row = (one) =>
      h(
        "tr",
        {},
        h("td", {}, one.kind),
        rateCell(one.before),
        rateCell(one.after),
        changeCell(one.after - one.before),
        h("td", { class: "n dim" }, number(one.episodes)),
      );
    const heads = [["Kind"], ["Before", "n"], ["After", "n"], ["Change", "n"], ["Episodes", "n"]];
    return table(heads, rows.map(row), { kind: "narrow" });
  }

  function list(context, tasks) {
    return table(
      HEADS,
      tasks.map((task) => row(context, task)),
    );
  }

  function changeCell(change) {
    const kind = change > 0 ? "good" : change < 0 ? "bad" : "dim";
    return h("td", { class: `n ${kind}` }, known(change) ? points(change) : "–");
  }

  function row(context, task) {
    return h(
      "tr",
      {},
      h(
        "td",
        { class: "task" },
        h("a", { href: link(["s", context.source, "task", task.task]) }, task.instruction || task.task),
        h("small", {}, task.task),
      ),
      h("td", { class: "dim" }, task.task_set || ""),
      rateCell(task.before),
      rateCell(task.after),
      changeCell(task.change),
      rateCell(rate(task)),
      h(
        "td",
        {},
        arpo.charts.sparkline(task.history || [], `Success rate of ${task.task} in training, batch by batch`),
      ),
      h("td", { class: "n" }, number(task.trained)),
      h("td", { class: task.rescued ? "n accent" : "n dim" }, number(task.rescued)),
      h("td", { class: task.failures ? "n bad" : "n dim" }, number(task.failures)),
    );
  }

  function points(change) {
    return (change > 0 ? "+" : change < 0 ? "−" : "") + Math.abs(100 * change).toFixed(0);
  }

  function rateCell(value) {
    if (!known(value)) return h("td", { class: "n dim" }, "–");
    return h(
      "td",
      { class: "n rate" },
      arpo.charts.heat(h("i", { class: "level", "aria-hidden": "true" }), value),
      h("span", {}, percent(value)),
    );
  }

  async function renderTask(context) {
    const task = await arpo.api.get(["s", context.source, "tasks", context.parts[0]]);
    const mean = (scores) => scores.reduce((sum, score) => sum + score, 0) / scores.length;
    const series = [
      {
        label: "training episodes",
        colour: 0,
        points: task.curve.filter((one) => one.episodes).map((one) => [one.batch, one.solved / one.episodes]),
      },
      {
        label: "evaluations",
        colour: 1,
        points: task.evaluations
          .filter((one) => one.scores.length)
          .map((one) => [one.step, mean(one.scores)]),
      },
    ];
    const pair = (
      await Promise.all(
        [task.before_episode, task.after_episode]
          .filter((row) => row)
          .map(async (row) => {
            const episode = await arpo.api
              .get(["s", context.source, "episodes", row.episode])
              .catch(() => null);
            return (
              episode && { ...episode, head: side(context, episode) }
            );
          }),
      )
    ).filter(Boolean);
    return [
      h("h1", {}, task.instruction || task.task),
      h(
        "div",
        { class: "line" },
        h("code", {}, task.task),
        task.task_set ? h("span", { class: "badge" }, task.task_set) : null,
        known(task.before) ? h("span", {}, `before ${percent(task.before)}`) : null,
        known(task.after) ? h("span", {}, `after ${percent(task.after)}`) : null,
        task.trained
          ? h("span", {}, `${number(task.solved)} of ${number(task.trained)} training episodes solved`)
          : null,
        task.rescued
          ? h("span", { class: "accent" }, `rescued ${number(task.rescued)} times by replay`)
          : null,
        h("a", { href: link(["s", context.source, "episodes"], { task: task.task }) }, "all its episodes"),
      ),
      h(
        "div",
        { class: "charts" },
        arpo.charts.lineChart({
          title: "Success over time",
          series,
          inPercent: true,
          open: (one, step) => {
            arpo.app.go(arpo.app.stepLink(context.source, step));
          },
        }),
      ),
      pair.length
        ? [
            h("h2", {}, pair.length > 1 ? "Before and after training" : "A stored episode"),
            arpo.groups.sideBySide(context, pair),
          ]
        : null,
      h("h2", {}, "Newest episodes"),
      arpo.episodes.table(task.episodes, context, context.source),
    ];
  }

  function side(context, episode) {
    return [
      h(
        "div",
        {},
        `${episode.phase_title}: `,
        h(
          "a",
          { class: "name", href: link(["s", context.source, "episode", episode.episode]) },
          episode.episode,
        ),
      ),
      h(
        "div",
        {},
        h("span", { class: `badge ${episode.solved ? "good" : "bad"}` }, `score ${number(episode.score)}`),
      ),
      h("p", { class: "dim" }, episode.end),
    ];
  }

  arpo.app.pages.tasks = { title: () => "Tasks", tab: "tasks", render };
  arpo.app.pages.task = { title: (context) => `Task ${context.parts[0]}`, tab: "tasks", render: renderTask };
  return { list, kinds, side };
})();
