"use strict";
// Page "Runs": all sources, and curves of any metric, with several runs in one chart.

arpo.runs = (() => {
  const { h, table } = arpo.dom;
  const { number, percent, signed } = arpo.words;
  const { link, nameOf } = arpo.app;
  const COLOURS = 8,
    MOST = 16; // runs in the charts at first
  const EVALUATED = "eval_";
  const FIRST = [
    "success",
    "reward",
    "rescued",
    "without_signal",
    "entropy",
    "loss",
  ];
  const logs = new Map(); // source id → { rows, next, explained, generation }
  const UNREAD = { rows: [], next: 0, explained: {} };

  async function log(source) {
    let known = logs.get(source) || UNREAD;
    let answer = await arpo.api.get(["s", source, "metrics"], { from: known.next });
    if (known.next && answer.generation !== known.generation) {
      known = UNREAD; // the file was truncated, or replaced by a longer one
      answer = await arpo.api.get(["s", source, "metrics"]);
    }
    const rows = arpo.api.exported ? answer.rows : [...known.rows, ...answer.rows];
    const { next, generation } = answer;
    const found = { rows, next, generation, explained: { ...known.explained, ...answer.explained } };
    logs.set(source, found);
    return found;
  }

  const list = (text) => (text ? text.split(",").map(decodeURIComponent) : []);
  const joined = (names) => (names.length ? names.map(encodeURIComponent).join(",") : "none");

  function chosen(text, first) {
    return text === undefined ? first : text === "none" ? [] : list(text);
  }

  function toggled(names, name) {
    return names.includes(name) ? names.filter((one) => one !== name) : [...names, name];
  }

  const capital = (text) => text[0].toUpperCase() + text.slice(1);

  // All seeds of one method in a comparison have the same colour.
  const kindOf = (one) => (one.method ? `${one.comparison} ${one.method}` : one.id);

  async function render(context) {
    const plotted = context.sources.filter((one) => one.kind === "run");
    const runs = chosen(
      context.query.runs,
      plotted.slice(0, MOST).map((one) => one.id),
    );
    const shown = plotted.filter((one) => runs.includes(one.id));
    const found = await Promise.all(shown.map((one) => log(one.id)));
    const explained = Object.assign({}, ...found.map((one) => one.explained));
    const names = [...new Set(found.flatMap((one) => one.rows.flatMap(Object.keys)))]
      .filter((name) => name !== "step")
      .sort();
    const labels = Object.assign({}, ...context.sources.map((one) => one.sets)); // of all task sets
    const metrics = chosen(
      context.query.metrics,
      [...Object.keys(labels).map((name) => EVALUATED + name), ...FIRST].filter((name) => names.includes(name)),
    );
    const smooth = Number(context.query.smooth || 0);
    const kinds = [...new Set(shown.map(kindOf))];
    const colours = new Map(shown.map((one) => [one.id, kinds.indexOf(kindOf(one)) % COLOURS]));
    return [
      h("h1", { class: "hidden" }, "Runs"),
      problems([...(arpo.app.errors() || []), ...context.sources.flatMap((one) => one.errors || [])]),
      context.sources.length
        ? table(
            [...HEADS, ...Object.values(labels).map((label) => [capital(label), "n"])],
            context.sources.map((one) => row(context, one, colours, runs, Object.keys(labels))),
            { kind: "cards" },
          )
        : h(
            "p",
            { class: "notice" },
            "No run yet. `arpo train desk` makes one; `arpo view FOLDER` opens another folder.",
          ),
      names.length ? picker(context, names, metrics, explained) : null,
      names.length ? arpo.dom.filters("Curves", arpo.charts.smoothing(context)) : null,
      h(
        "div",
        { class: "charts" },
        metrics.map((name) => chart(name, explained[name], shown, found, colours, smooth)),
      ),
    ];
  }

  function problems(errors) {
    return errors.length
      ? h(
          "ul",
          { class: "warn" },
          errors.map((text) => h("li", {}, text)),
        )
      : null;
  }

  const HEADS = [
    [h("span", { class: "hidden" }, "Shown in the charts")],
    ["Run"],
    ["Settings", "minor"],
    ["State"],
    ["Batches", "n"],
    ["Episodes", "n"],
    ["Faults", "n"],
  ];

  function row(context, one, colours, runs, sets) {
    const box =
      one.kind !== "run"
        ? null
        : h("input", {
            type: "checkbox",
            "aria-label": `Show ${nameOf(one)} in the charts`,
            checked: colours.has(one.id),
            "data-key": `run ${one.id}`,
            onchange: () => context.setQuery(context, { runs: joined(toggled(runs, one.id)) }),
          });
    const first = one.kind === "run" ? "batches" : "episodes";
    return h(
      "tr",
      {},
      h("td", { class: colours.has(one.id) ? `c${colours.get(one.id)} pick` : "pick" }, box),
      h(
        "td",
        {},
        h("a", { class: "name", href: link(["s", one.id, first]) }, nameOf(one)),
        one.method && h("small", {}, h("a", { href: link(["comparison", one.comparison]) }, one.comparison)),
      ),
      h("td", { class: "dim wide" }, one.subtitle || one.kind),
      h("td", {}, state(one)),
      h("td", { class: "n" }, one.kind === "run" ? number(one.batches) : "–"),
      h("td", { class: "n" }, number(one.episodes)),
      h("td", { class: one.failures ? "n bad" : "n" }, number(one.failures)),
      sets.map((name) => h("td", { class: "n" }, change(one.success, name))),
    );
  }

  function state(one) {
    if (one.indexing) return h("span", { class: "badge" }, `reading ${percent(one.indexing.share)}`);
    if (one.live) return h("span", { class: "badge live" }, "live");
    if (one.kind !== "run")
      return h("span", { class: "badge" }, one.kind === "osworld" ? "OSWorld" : one.kind);
    return h("span", { class: "badge" }, one.finished ? "finished" : "not finished");
  }

  // Success rate before and after training, coloured if the 95% interval of the change excludes 0; only before, if
  // the run has not ended.
  function change(success, name) {
    const before = success?.base?.[name],
      after = success?.final?.[name];
    if (before === undefined && after !== undefined) return h("b", {}, percent(after));
    if (after === undefined) return h("span", { class: "dim" }, percent(before));
    const [low, high] = success.intervals?.[name] || [-1, 1];
    const kind = low > 0 ? "good" : high < 0 ? "bad" : null;
    const points = (value) => signed(100 * value, 0);
    return [
      h("span", { class: "dim" }, `${percent(before)} → `),
      h("b", { class: kind }, percent(after)),
      success.intervals?.[name] &&
        h(
          "small",
          { title: "95% interval of the change, in percentage points" },
          `${points(low)} to ${points(high)}`,
        ),
    ];
  }

  function picker(context, names, metrics, explained) {
    const rest = names.filter((name) => !metrics.includes(name));
    const select = (next) => context.setQuery(context, { metrics: joined(next) });
    return h(
      "div",
      { class: "picker" },
      metrics.map((name) =>
        h(
          "button",
          {
            class: "tag",
            type: "button",
            "data-key": `metric ${name}`,
            title: "Remove this curve",
            "aria-label": `Remove the curve of ${name}`,
            onclick: () => select(toggled(metrics, name)),
          },
          name,
          h("span", { "aria-hidden": "true" }, " ×"),
        ),
      ),
      h(
        "select",
        {
          "aria-label": "Add a metric",
          "data-key": "add metric",
          onchange: (event) => select([...metrics, event.target.value]),
        },
        h("option", { value: "" }, "Add a metric…"),
        rest.map((name) =>
          h("option", { value: name }, explained[name] && explained[name].title !== name ? `${name}: ${explained[name].title}` : name),
        ),
      ),
    );
  }

  function chart(name, metric, shown, found, colours, smooth) {
    const series = shown.map((one, index) => ({
      label: nameOf(one),
      source: one.id,
      colour: colours.get(one.id),
      points: found[index].rows
        .filter((row) => typeof row[name] === "number")
        .map((row) => [row.step, row[name]]),
    }));
    return arpo.charts.lineChart({
      title: metric ? metric.title : name,
      notes: metric ? [[name, metric.explanation]] : [],
      smooth,
      series,
      inPercent: Boolean(metric && metric.percent),
      open: (one, step) => {
        arpo.app.go(arpo.app.stepLink(one.source, step));
      },
    });
  }

  arpo.app.pages.runs = { title: () => "Runs", render };
  return { log, problems };
})();
