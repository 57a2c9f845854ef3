"use strict";
// Page "Report": the whole run on one page. report.html is this page and the views that it links to, in one file.

arpo.report = (() => {
  const { h, table } = arpo.dom;
  const { number, count } = arpo.words;
  const { link, nameOf } = arpo.app;

  async function render(context) {
    const ask = (...parts) => arpo.api.get(["s", context.source, ...parts]).catch(() => null);
    const [report, log, tasks, failures, timeline, recipe] = await Promise.all([
      arpo.api.get(["s", context.source, "report"]),
      arpo.runs.log(context.source),
      ...["tasks", "failures", "timeline", "recipe"].map((name) => ask(name)),
    ]);
    return [
      h("h1", {}, nameOf(context.info)),
      h("p", { class: "dim" }, context.info.subtitle, !report.finished && ", not finished yet"),
      arpo.runs.problems([...report.warnings, ...(context.info.errors || [])]),
      gap(context, report.gap),
      success(report),
      tasks?.kinds.length
        ? [section("What it learned", "success by kind of task"), tall("Kinds", arpo.tasks.kinds(tasks.kinds))]
        : null,
      section(report.episodes.title, report.episodes.note),
      await Promise.all(
        report.episodes.shown.map((names, index) =>
          shown(context, names, index === 0).catch((error) => arpo.runs.problems([error.message])),
        ),
      ),
      curves(context, report, log),
      timeline?.rows.some((row) => "env_idle" in row)
        ? [section("Where time goes", "by batch"), arpo.timeline.timeCharts(context, timeline)]
        : null,
      tasks?.tasks.length
        ? [
            section("Success rate by task", hardest(tasks.tasks.length)),
            tall("Tasks", arpo.tasks.list(context, tasks.tasks.slice(0, HARDEST))),
          ]
        : null,
      endings(report.endings),
      await groups(context, report.batches.at(-1)).catch((error) => arpo.runs.problems([error.message])),
      failures?.total ? [section("Faults", faultsNote(failures)), arpo.faults.kinds(failures)] : null,
      recipe && [
        section("Recipe"),
        h("details", {}, h("summary", {}, "All settings of this run"), h("pre", {}, recipe.text)),
      ],
    ];
  }

  const HARDEST = 100; // tasks in the report
  const hardest = (total) => `${total > HARDEST ? `the ${HARDEST} hardest of ` : ""}${count(total, "task")}`;

  const section = (title, note) => h("h2", { class: "section" }, title, note && h("small", {}, ` ${note}`));

  // A part of limited height, which scrolls.
  const tall = (label, content) =>
    h("div", { class: "tall", tabindex: 0, role: "region", "aria-label": label }, content);

  const faultsNote = (failures) =>
    `${count(failures.total, "episode")} ended by a fault of the environment or the engine, without a score`;

  const LONG = 40; // characters of a cell that is no number

  // Columns of numbers; the first one has labels.
  function numbers(heads, rows) {
    const cell = (text, index) => h("td", { class: index ? (text.length > LONG ? "text" : "n") : null }, text);
    return table(
      heads.map((text, index) => [text, index ? "n" : ""]),
      rows.map((row) => h("tr", {}, row.map(cell))),
      { kind: "narrow" },
    );
  }

  function success({ success: { heads, rows }, totals, evaluations }) {
    return [
      section("Success rate before and after training"),
      h(
        "div",
        { class: "pair" },
        numbers(["tasks", ...heads.slice(1)], rows),
        totals.length ? numbers(["in all", "count"], totals) : null,
      ),
      h("p", { class: "dim" }, evaluations),
    ];
  }

  function curves(context, report, { rows, explained }) {
    const points = (name) =>
      rows.filter((row) => typeof row[name] === "number").map((row) => [row.step, row[name]]);
    const open = (_, step) => {
      arpo.app.go(arpo.app.stepLink(context.source, step));
    };
    const chart = ({ title, metrics }) => {
      const names = Object.keys(metrics).filter((name) => points(name).length);
      if (!names.length) return null;
      return arpo.charts.lineChart({
        title,
        open,
        smooth: Number(context.query.smooth || 0),
        series: names.map((name, colour) => ({ label: metrics[name], colour, points: points(name) })),
        inPercent: names.every((name) => explained[name]?.percent),
        notes: names.map((name) => [name, explained[name]?.explanation || ""]),
      });
    };
    const above = new Set(["step", ...report.charts.flatMap((one) => Object.keys(one.metrics))]);
    const others = [...new Set(rows.flatMap(Object.keys))].filter((name) => !above.has(name));
    const more = others
      .map((name) => chart({ title: explained[name]?.title || name, metrics: { [name]: name } }))
      .filter(Boolean);
    return [
      section("Curves", "by batch"),
      arpo.dom.filters("Curves", arpo.charts.smoothing(context)),
      h("div", { class: "charts" }, report.charts.map(chart)),
      more.length
        ? h("details", {}, h("summary", {}, "Other metrics"), h("div", { class: "charts" }, more))
        : null,
    ];
  }

  async function groups(context, number_) {
    if (!number_) return null;
    const batch = await arpo.api.get(["s", context.source, "batches", number_]);
    return [
      section("Groups", `of batch ${number(number_)}`),
      tall("Groups", arpo.batches.groups(context, batch)),
    ];
  }

  // What arpo doctor --gap has found.
  function gap(context, found) {
    if (!found) return null;
    const tried = (one) =>
      h(
        "tr",
        {},
        h("td", {}, one.part),
        h("td", { class: "text" }, one.what),
        h("td", { class: "n" }, number(one.kl)),
      );
    const worst = (one) =>
      h(
        "tr",
        {},
        h("td", {}, h("a", { href: link(["s", context.source, "episode", one.episode]) }, one.episode)),
        h("td", { class: "n" }, number(one.step)),
        h("td", { class: "n" }, number(one.token)),
        h("td", {}, h("code", {}, one.text)),
        h("td", { class: "n" }, number(one.engine)),
        h("td", { class: "n" }, number(one.learner)),
      );
    return [
      section("Engine and learner", "arpo doctor --gap"),
      h("p", {}, found.conclusion),
      table([["Part"], ["Tried"], ["engine_kl if the learner did the same", "n"]], found.tried.map(tried)),
      table(
        [["Episode"], ["Step", "n"], ["Token", "n"], ["Text"], ["Engine", "n"], ["Learner", "n"]],
        found.worst.map(worst),
      ),
    ];
  }

  function endings({ phases, rows }) {
    if (!rows.length) return null;
    const row = (one) =>
      h(
        "tr",
        {},
        h(
          "td",
          { class: "text" },
          one.end,
          one.detail && h("small", {}, `most frequent message: ${one.detail}`),
        ),
        h("td", { class: one.solved ? "good" : "bad" }, one.solved ? "solved" : "failed"),
        one.rates.map((rate) => h("td", { class: "n" }, rate)),
      );
    return [
      section("How episodes ended"),
      table([["End of the episode"], ["Result"], ...phases.map((phase) => [phase, "n"])], rows.map(row)),
    ];
  }

  // One episode, or a task's episodes before and after training.
  async function shown(context, names, open) {
    const ask = (name) => arpo.api.get(["s", context.source, "episodes", name]);
    const episodes = await Promise.all(names.map(ask));
    const [first] = episodes,
      sides = episodes.length > 1 ? ["before: ", "after: "] : [""];
    const badge = (one, index) => [
      index ? " → " : null,
      h("span", { class: `badge ${one.solved ? "good" : "bad"}` }, `${sides[index]}score ${number(one.score)}`),
    ];
    const facts = [first.task, first.task_set, episodes.length === 1 && first.phase_title].filter(Boolean);
    const columns = episodes.map((one) => ({ ...one, head: arpo.tasks.side(context, one) }));
    return h(
      "details",
      { open },
      h(
        "summary",
        { "data-key": `shown ${names.join(" ")}` },
        episodes.map(badge),
        h("b", {}, first.instruction || first.task),
        h("span", { class: "dim" }, ` ${facts.join(", ")}`),
      ),
      arpo.groups.sideBySide(context, columns),
    );
  }

  arpo.app.pages.report = { title: () => "Report", tab: "report", render };
})();
