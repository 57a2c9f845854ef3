"use strict";
// Pages "Failures" and "Timeline": faults of environments and engine, and use of time.

arpo.machinery = (() => {
  const { h, table } = arpo.dom;
  const { number, seconds } = arpo.words;
  const { link } = arpo.app;
  const { lineChart, stackedChart } = arpo.charts;

  async function renderFailures(context) {
    const answer = await arpo.api.get(["s", context.source, "failures"]);
    if (!answer.total)
      return [h("h1", {}, "Failures"), h("p", { class: "notice" }, "All episodes could be played.")];
    return [
      h("h1", {}, "Failures ", h("small", {}, number(answer.total))),
      h("p", { class: "dim" }, "Episodes that could not be played. They never count as a reward of 0."),
      h("h2", {}, "By kind and host"),
      kinds(answer),
      h("h2", {}, "Newest"),
      table(
        NEWEST_HEADS,
        answer.newest.map((one) => newestRow(context, one)),
      ),
    ];
  }

  const KIND_HEADS = [["Kind"], ["In"], ["Host"], ["Count", "n"], ["Tasks", "n"], ["Message", "wide"]];

  const kinds = (answer) => table(KIND_HEADS, answer.by_kind.map(kindRow));

  function kindRow(one) {
    return h(
      "tr",
      {},
      h("td", {}, h("b", {}, one.kind)),
      h("td", {}, one.where),
      h("td", {}, h("code", {}, one.host || "this machine")),
      h("td", { class: "n bad" }, number(one.count)),
      h("td", { class: "n" }, number(one.tasks)),
      h("td", { class: "text" }, one.message),
    );
  }

  const NEWEST_HEADS = [
    ["Episode"],
    ["Task"],
    ["Batch"],
    ["Kind"],
    ["In"],
    ["Host"],
    ["Attempts", "n"],
    ["Message", "wide"],
  ];

  function newestRow(context, one) {
    const to = (page, name) => link(["s", context.source, page, name]);
    return h(
      "tr",
      {},
      h("td", {}, h("code", {}, one.episode)),
      h("td", {}, h("a", { href: to("task", one.task) }, one.task)),
      h("td", {}, one.batch && h("a", { href: to("batch", one.batch) }, `batch ${number(one.batch)}`)),
      h("td", {}, one.kind),
      h("td", {}, one.where),
      h("td", {}, h("code", {}, one.host || "this machine")),
      h("td", { class: "n" }, number(one.attempts)),
      h("td", { class: "text" }, one.message, one.place && h("small", {}, one.place)),
    );
  }

  const stagesOf = ({ rows, stages }) => Object.keys(stages).filter((name) => rows.some((row) => row[name]));

  const secondsOf = (row, stages) => stages.reduce((sum, name) => sum + (row[name] || 0), 0);

  async function renderTimeline(context) {
    const answer = await arpo.api.get(["s", context.source, "timeline"]);
    const { rows } = answer;
    const lanes = await arpo.lanes.render(context);
    if (!rows.length)
      return [h("h1", {}, "Timeline"), lanes, h("p", { class: "notice" }, "No batch was timed yet.")];
    const total = rows.reduce((sum, row) => sum + secondsOf(row, stagesOf(answer)), 0);
    return [
      h("h1", {}, "Timeline ", h("small", {}, `${number(rows.length)} batches, ${seconds(total)}`)),
      lanes,
      h("h2", {}, "By batch"),
      timeCharts(context, answer),
    ];
  }

  // Shares of time by batch, of the environments and of the training loop.
  function timeCharts(context, answer) {
    const { rows, environments, stages } = answer;
    const columns = (names) => rows.map((row) => [row.step, names.map((name) => row[name] || 0)]);
    const used = stagesOf(answer);
    const busy = (label, colour, value) => ({
      label,
      colour,
      points: rows.map((row) => [row.step, value(row)]),
    });
    const open = (_, step) => {
      arpo.app.go(arpo.app.stepLink(context.source, step));
    };
    return h(
      "div",
      { class: "charts large" },
      stackedChart({
        title: "Time of the environments",
        labels: Object.values(environments),
        columns: columns(Object.keys(environments)),
        note: "Environments without an episode are idle. Low is good: raise train.max_staleness if it is high.",
      }),
      stackedChart({
        title: "Time of the training loop",
        labels: used.map((name) => stages[name]),
        columns: columns(used),
        note: "In asynchronous training, the learner waits for groups. In lock step, it waits for rollouts.",
      }),
      lineChart({
        title: "Busy",
        inPercent: true,
        open,
        series: [
          busy("engine", 0, (row) => row.engine_busy),
          busy("learner", 1, (row) => ((row.learn || 0) + (row.judge || 0)) / (secondsOf(row, used) || NaN)),
        ],
      }),
      lineChart({
        title: "Seconds per batch",
        open,
        series: used.map((name, index) => busy(stages[name], index, (row) => row[name])),
      }),
    );
  }

  arpo.app.pages.failures = { title: () => "Failures", tab: "failures", render: renderFailures };
  arpo.app.pages.timeline = { title: () => "Timeline", tab: "timeline", render: renderTimeline };
  return { kinds, timeCharts };
})();
