"use strict";
// Page "Timeline": lanes of environments, engine and learner, and use of time by batch.

arpo.timeline = (() => {
  const { h, table, select, replace } = arpo.dom;
  const { number, seconds, percent } = arpo.words;
  const { link, go } = arpo.app;
  const { lineChart, stackedChart } = arpo.charts;
  const CELL = 4; // pixels of a column
  const BAND = 16, // pixels of the lanes of learner and engine
    GAP = 6,
    HEIGHT = 384; // pixels of all environments, if there are many
  const SLOWEST = 10;

  // One colour for each meaning, in all pictures of this page.
  const COLOURS = {
    environments: { start: 4, step: 2, evaluate: 6, engine: 0, idle: 7 },
    stages: { rollout: 8, wait: 5, learn: 1, evaluate: 3, save: 9, judge: 10 },
  };
  const ofEnvironments = (name) => COLOURS.environments[name.replace("env_", "")];
  const ofStage = (name) => COLOURS.stages[name] ?? COLOURS.environments.idle;

  const stagesOf = ({ rows, stages }) => Object.keys(stages).filter((name) => rows.some((row) => row[name]));

  const secondsOf = (row, stages) => stages.reduce((sum, name) => sum + (row[name] || 0), 0);

  async function render(context) {
    const answer = await arpo.api.get(["s", context.source, "timeline"]);
    const { rows } = answer;
    const drawn = await lanes(context);
    if (!rows.length)
      return [h("h1", {}, "Timeline"), drawn, h("p", { class: "notice" }, "No batch was timed yet.")];
    const total = rows.reduce((sum, row) => sum + secondsOf(row, stagesOf(answer)), 0);
    return [
      h("h1", {}, "Timeline ", h("small", {}, `${number(rows.length)} batches, ${seconds(total)}`)),
      drawn,
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
        colours: Object.keys(environments).map(ofEnvironments),
        note: "Environments without an episode are idle. Low is good: raise train.max_staleness if it is high.",
      }),
      stackedChart({
        title: "Time of the training loop",
        labels: used.map((name) => stages[name]),
        columns: columns(used),
        colours: used.map(ofStage),
        note: "In asynchronous training, the learner waits for groups. In lock step, it waits for rollouts.",
      }),
      lineChart({
        title: "Busy",
        inPercent: true,
        open,
        series: [
          busy("engine", ofEnvironments("engine"), (row) => row.engine_busy),
          busy("learner", ofStage("learn"), (row) => ((row.learn || 0) + (row.judge || 0)) / (secondsOf(row, used) || NaN)),
        ],
      }),
      lineChart({
        title: "Seconds per batch",
        open,
        series: used.map((name) => busy(stages[name], ofStage(name), (row) => row[name])),
      }),
    );
  }

  // Environments, engine and learner over time, drawn on a canvas.
  async function lanes(context) {
    const batch = context.query.batch || "";
    const answer = await arpo.api.get(["s", context.source, "lanes", ...(batch ? [batch] : [])]);
    if (!answer.rows)
      return h("p", { class: "notice" }, "This run has no times of calls yet. Older versions did not store them.");
    return h(
      "section",
      { class: "lanes", "aria-label": "Lanes" },
      chooser(context, answer),
      figure(context, answer),
      slowest(context, answer),
    );
  }

  function chooser(context, answer) {
    const whole = ["", answer.batch !== null && !context.query.batch ? "Newest batch" : "Whole run"];
    const options = answer.batches.map((one) => [
      String(one.batch),
      one.batch ? `Batch ${number(one.batch)}` : "Before training",
    ]);
    const choose = (value) => context.setQuery(context, { batch: value });
    return h(
      "div",
      { class: "controls" },
      select("lanes-batch", "Show", [whole, ...options], context.query.batch || "", choose),
      h(
        "span",
        { class: "dim" },
        `${seconds(answer.ended - answer.began)}, ${number(answer.lanes)} environments`,
        answer.per_row > 1 ? `, ${answer.per_row} in each row` : "",
        answer.complete ? "" : ". Only the first episodes are shown: choose one batch",
      ),
    );
  }

  // Names of the lanes, beside the picture.
  function laneNames(answer, height, top) {
    const name = (text, start, size) => h("span", { css: { top: `${start}px`, height: `${size}px` } }, text);
    const rows = answer.rows.length;
    return h(
      "div",
      { class: "lane-names", "aria-hidden": "true" },
      name("learner", 0, BAND),
      name("engine", BAND + GAP, BAND),
      rows > 0 && name(rows > 1 ? "environment 1" : "environment", top, height),
      rows > 1 && height * rows > 40 && name(`… ${number(answer.lanes)}`, top + (rows - 1) * height, height),
    );
  }

  function figure(context, answer) {
    const height = Math.max(2, Math.min(14, Math.floor(HEIGHT / Math.max(1, answer.rows.length))));
    const top = 2 * (BAND + GAP);
    const canvas = h("canvas", {
      width: answer.columns * CELL,
      height: top + Math.max(1, answer.rows.length) * height,
      role: "img",
      "aria-label": summary(answer),
      css: { height: `${top + Math.max(1, answer.rows.length) * height}px` },
    });
    draw(canvas.getContext("2d"), answer, height, top);
    const readout = h("p", { class: "readout" });
    const at = (event) => find(answer, canvas, event, height, top);
    const show = (event) => replace(readout, event ? describe(answer, at(event)) : keys(answer));
    canvas.addEventListener("mousemove", show);
    canvas.addEventListener("mouseleave", () => show(null));
    canvas.addEventListener("click", (event) => open(context, answer, at(event)));
    show(null);
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => time(answer, share));
    return h(
      "figure",
      { class: "chart" },
      h("figcaption", {}, "Learner, engine and environments over time"),
      h("div", { class: "lane-plot" }, laneNames(answer, height, top), canvas),
      h("p", { class: "ticks", "aria-hidden": "true" }, ticks.map((text) => h("span", {}, text))),
      readout,
    );
  }

  const time = (answer, share) => seconds(answer.began + share * (answer.ended - answer.began));

  function summary(answer) {
    const cells = answer.rows.map((row) => row.cells).join("");
    const share = (character) => percent((cells.split(character).length - 1) / (cells.length || 1));
    const parts = answer.kinds.map((kind, index) => `${answer.labels[kind]} ${share(String(index))}`);
    return `Environments: ${[...parts, `idle ${share(".")}`].join(", ")}`;
  }

  function colours() {
    const style = getComputedStyle(document.documentElement);
    return [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map((index) => style.getPropertyValue(`--c${index}`).trim());
  }

  function draw(pen, answer, height, top) {
    const palette = colours();
    const place = (moment) =>
      ((moment - answer.began) / (answer.ended - answer.began)) * answer.columns * CELL;
    for (const [name, began, duration] of answer.learner) {
      pen.fillStyle = palette[ofStage(name)];
      pen.fillRect(place(began), 0, Math.max(1, place(began + duration) - place(began)), BAND);
    }
    pen.fillStyle = palette[ofEnvironments("engine")];
    answer.engine.forEach((busy, column) => {
      pen.globalAlpha = busy && 0.25 + 0.75 * Math.min(1, answer.requests[column] / Math.max(1, answer.lanes));
      pen.fillRect(column * CELL, BAND + GAP + BAND * (1 - busy), CELL, BAND * busy);
    });
    pen.globalAlpha = 1;
    answer.rows.forEach(({ cells }, row) => {
      for (const [character, start, end] of runs(cells)) {
        if (character === ".") continue;
        pen.fillStyle = palette[ofEnvironments(answer.kinds[Number(character)])];
        pen.fillRect(start * CELL, top + row * height, (end - start) * CELL, height - (height > 4 ? 1 : 0));
      }
    });
    pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--bad").trim();
    answer.rows.forEach(({ episodes }, row) => {
      for (const [, , ended, fault] of episodes)
        if (fault) pen.fillRect(place(ended) - 2, top + row * height, 2, height);
    });
    pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--edge").trim();
    for (const { began } of answer.batches) pen.fillRect(place(began), 0, 1, BAND);
  }

  // "..0011" gives [".", 0, 2], ["0", 2, 4], ["1", 4, 6].
  function runs(cells) {
    const found = [];
    for (const match of cells.matchAll(/(.)\1*/g))
      found.push([match[1], match.index, match.index + match[0].length]);
    return found;
  }

  // What is under the pointer.
  function find(answer, canvas, event, height, top) {
    const box = canvas.getBoundingClientRect();
    const x = Math.max(0, Math.min(0.9999, (event.clientX - box.left) / box.width));
    const y = ((event.clientY - box.top) / box.height) * canvas.height;
    const moment = answer.began + x * (answer.ended - answer.began);
    const found = { moment, column: Math.floor(x * answer.columns) };
    if (y < BAND + GAP / 2)
      return { ...found, stage: answer.learner.find(([, began, s]) => began <= moment && moment <= began + s) };
    if (y < top - GAP / 2) return { ...found, engine: true };
    const row = answer.rows[Math.floor((y - top) / height)];
    const episode = row?.episodes.find(([, began, ended]) => began <= moment && moment <= ended);
    return { ...found, row, episode };
  }

  function describe(answer, { moment, column, stage, engine, row, episode }) {
    const words = [h("span", { class: "dim" }, seconds(moment))];
    if (stage) words.push(`learner: ${answer.stages[stage[0]] || stage[0]}, ${seconds(stage[2])}`);
    if (engine) words.push(`engine: ${number(answer.requests[column])} requests, busy ${percent(answer.engine[column])}`);
    if (row) words.push(answer.labels[answer.kinds[Number(row.cells[column])]] || "idle");
    if (episode)
      words.push(h("code", {}, episode[0]), episode[3] && `failed: ${episode[3]}`, episode[4]);
    return words.filter(Boolean).map((word) => (word instanceof Node ? word : h("span", {}, word)));
  }

  function keys(answer) {
    const key = (label, colour) => h("span", { class: "key" }, h("i", { class: `swatch c${colour}` }), label);
    const used = new Set(answer.learner.map(([name]) => name));
    const stages = Object.entries(answer.stages).map(([name, label]) => used.has(name) && key(label, ofStage(name)));
    return [
      h("span", { class: "dim" }, "Learner:"),
      stages,
      h("span", { class: "dim" }, "Environments:"),
      answer.kinds.map((kind) => key(answer.labels[kind], ofEnvironments(kind))),
      h("span", { class: "dim" }, "Engine: the darker, the more requests at once"),
    ];
  }

  function open(context, answer, { moment, stage, episode }) {
    if (episode && !episode[3]) go(link(["s", context.source, "episode", episode[0]]));
    else if (stage) {
      const batch = answer.batches.find(({ began, ended }) => began <= moment && moment <= ended);
      if (batch) context.setQuery(context, { batch: String(batch.batch) });
    }
  }

  const HEADS = [["Episode"], ["Began", "n"], ["Took", "n"], ["Host", "minor"], ["Ended by", "minor"]];

  // The slowest episodes as a table, for readers who do not see the picture.
  function slowest(context, answer) {
    const episodes = answer.rows.flatMap((row) => row.episodes);
    const rows = episodes.sort((a, b) => b[2] - b[1] - (a[2] - a[1])).slice(0, SLOWEST);
    const episodeLink = (name) =>
      h("a", { href: link(["s", context.source, "episode", name]) }, h("code", {}, name));
    const row = ([name, began, ended, fault, host]) =>
      h(
        "tr",
        {},
        h("td", {}, fault ? h("code", {}, name) : episodeLink(name)),
        h("td", { class: "n" }, seconds(began)),
        h("td", { class: "n" }, seconds(ended - began)),
        h("td", {}, host || "this machine"),
        h("td", { class: fault ? "bad" : "dim" }, fault || "its end"),
      );
    return table(HEADS, rows.map(row), { kind: "slow", caption: "Slowest episodes" });
  }

  arpo.app.pages.timeline = { title: () => "Timeline", tab: "timeline", render };
  return { timeCharts };
})();
