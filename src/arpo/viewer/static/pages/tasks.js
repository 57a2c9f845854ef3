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
    ["Set"],
    ["Before", "n"],
    ["After", "n"],
    ["Change", "n"],
    ["In training", "n"],
    ["Over time"],
    ["Training episodes", "n"],
    ["Rescued", "n"],
    ["Not played", "n"],
  ];

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
    return [
      h("h1", {}, "Tasks ", h("small", {}, number(tasks.length))),
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
      ),
      answer.kinds.length
        ? h("details", {}, h("summary", {}, "Success by kind of task, before and after"), kinds(answer.kinds))
        : null,
      list(context, tasks),
    ];
  }

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
