"use strict";
// Pages "Failures" and "Timeline": faults of environments and engine, and use of time.

arpo.machinery = (() => {
  const { h } = arpo.dom;
  const { number, seconds } = arpo.words;
  const { link } = arpo.app;
  const { lineChart, stackedChart } = arpo.charts;

  async function renderFailures(context) {
    const answer = await arpo.api.get(["s", context.source, "failures"]);
    if (!answer.total)
      return [h("h1", {}, "Failures"), h("p", { class: "notice" }, "All episodes could be played.")];
    const table = (heads, rows) =>
      h(
        "div",
        { class: "scroll" },
        h(
          "table",
          { class: "rows" },
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              heads.map(([text, kind]) => h("th", { scope: "col", class: kind }, text)),
            ),
          ),
          h("tbody", {}, rows),
        ),
      );
    const batch = (number_) =>
      number_
        ? h("a", { href: link(["s", context.source, "batch", number_]) }, `batch ${number(number_)}`)
        : "";
    return [
      h("h1", {}, "Failures ", h("small", {}, number(answer.total))),
      h("p", { class: "dim" }, "Episodes that could not be played. They never count as a reward of 0."),
      h("h2", {}, "By kind and host"),
      table(
        [
          ["Kind", ""],
          ["In", ""],
          ["Host", ""],
          ["Count", "n"],
          ["Tasks", "n"],
          ["Newest message", "wide"],
        ],
        answer.by_kind.map((one) =>
          h(
            "tr",
            {},
            h("td", {}, h("b", {}, one.kind)),
            h("td", {}, one.where),
            h("td", {}, h("code", {}, one.host || "this machine")),
            h("td", { class: "n bad" }, number(one.count)),
            h("td", { class: "n" }, number(one.tasks)),
            h("td", { class: "text" }, one.message),
          ),
        ),
      ),
      h("h2", {}, "Newest"),
      table(
        [
          ["Episode", ""],
          ["Task", ""],
          ["Batch", ""],
          ["Kind", ""],
          ["In", ""],
          ["Host", ""],
          ["Attempts", "n"],
          ["Message", "wide"],
        ],
        answer.newest.map((one) =>
          h(
            "tr",
            {},
            h("td", {}, h("code", {}, one.episode)),
            h("td", {}, h("a", { href: link(["s", context.source, "task", one.task]) }, one.task)),
            h("td", {}, batch(one.batch)),
            h("td", {}, one.kind),
            h("td", {}, one.where),
            h("td", {}, h("code", {}, one.host)),
            h("td", { class: "n" }, number(one.attempts)),
            h("td", { class: "text" }, one.message, one.place ? h("small", {}, one.place) : null),
          ),
        ),
      ),
    ];
  }

  async function renderTimeline(context) {
    const { rows, environments, stages } = await arpo.api.get(["s", context.source, "timeline"]);
    if (!rows.length)
      return [h("h1", {}, "Timeline"), h("p", { class: "notice" }, "No batch was timed yet.")];
    const columns = (names) => rows.map((row) => [row.step, names.map((name) => row[name] || 0)]);
    const used = Object.keys(stages).filter((name) => rows.some((row) => row[name]));
    const total = (row) => used.reduce((sum, name) => sum + (row[name] || 0), 0);
    const busy = (label, colour, value) => ({
      label,
      colour,
      points: rows.map((row) => [row.step, value(row)]),
    });
    const open = (_, step) => {
      location.hash = link(["s", context.source, "batch", Math.max(1, step)]);
    };
    return [
      h(
        "h1",
        {},
        "Timeline ",
        h(
          "small",
          {},
          `${number(rows.length)} batches, ${seconds(rows.reduce((sum, row) => sum + total(row), 0))}`,
        ),
      ),
      h(
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
            busy("learner", 1, (row) => (total(row) ? (row.learn || 0) / total(row) : NaN)),
          ],
        }),
        lineChart({
          title: "Seconds per batch",
          open,
          series: used.map((name, index) => busy(stages[name], index, (row) => row[name])),
        }),
      ),
    ];
  }

  arpo.app.pages.failures = { title: () => "Failures", tab: "failures", render: renderFailures };
  arpo.app.pages.timeline = { title: () => "Timeline", tab: "timeline", render: renderTimeline };
})();
