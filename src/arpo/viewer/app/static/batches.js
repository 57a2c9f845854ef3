"use strict";
// Pages "Batches", "Batch" and "Group": groups as rows of dots, and the episodes of a group side by side.

arpo.batches = (() => {
  const { h } = arpo.dom;
  const { number, percent, signed, count } = arpo.words;
  const { link } = arpo.app;
  const { heat } = arpo.charts;
  const KINDS = {
    solved: "solved",
    failed: "not solved",
    error: "could not be played",
    replayed: "replayed success",
  };

  function describe(dot) {
    if (dot.kind === "error") return `${dot.episode}: could not be played: ${dot.error || ""}`;
    const parts = [
      `${dot.episode}: ${KINDS[dot.kind] || dot.kind}`,
      `score ${number(dot.score)}`,
      `reward ${number(dot.reward)}`,
    ];
    if (dot.advantage !== null && dot.advantage !== undefined)
      parts.push(`advantage ${signed(dot.advantage)}`);
    if (dot.stop) parts.push(dot.stop.replaceAll("_", " "));
    if (dot.kind === "replayed")
      parts.push(
        `from batch ${number(dot.origin_batch)}, ${count(dot.age, "batch").replace("batchs", "batches")} old, instead of ${dot.replaced}`,
      );
    return parts.join(", ");
  }

  function dotLink(context, dot) {
    const label = describe(dot);
    const face = dot.kind === "error" ? "×" : dot.kind === "replayed" ? "↺" : dot.malformed ? "!" : "";
    const shape = heat(
      h("i", { class: `dot-face ${dot.kind}`, "aria-hidden": "true" }, face),
      dot.score ?? 0,
    );
    const below = h(
      "span",
      { class: "advantage", "aria-hidden": "true" },
      dot.advantage === null || dot.advantage === undefined ? "" : signed(dot.advantage, 1),
    );
    if (dot.kind === "error")
      return h("span", { class: "dot-link", title: label, role: "img", "aria-label": label }, shape, below);
    return h(
      "a",
      {
        class: "dot-link",
        href: link(["s", context.source, "episode", dot.episode]),
        title: label,
        "aria-label": label,
      },
      shape,
      below,
    );
  }

  function legend() {
    const key = (kind, share, face, text) =>
      h("span", { class: "key" }, heat(h("i", { class: `dot-face ${kind}` }, face), share), text);
    return h(
      "p",
      { class: "legend", "aria-hidden": "true" },
      key("solved", 1, "", "solved"),
      key("failed", 0.4, "", "partial score"),
      key("failed", 0, "", "not solved"),
      key("replayed", 1, "↺", "replayed success"),
      key("failed", 0, "!", "malformed answer"),
      key("error", 0, "×", "not played"),
      h("span", { class: "key" }, "below: advantage"),
    );
  }

  async function renderBatches(context) {
    const { batches } = await arpo.api.get(["s", context.source, "batches"]);
    if (!batches.length)
      return [
        h("h1", {}, "Batches"),
        h(
          "p",
          { class: "notice" },
          "No batch yet. ",
          h("a", { href: link(["s", context.source, "episodes"]) }, "Episodes"),
        ),
      ];
    const heads = [
      "Batch",
      "Solved",
      "Success",
      "Groups",
      "Rescued by replay",
      "Without signal",
      "Dropped",
      "Not played",
    ];
    return [
      h("h1", {}, "Batches ", h("small", {}, number(batches.length))),
      h(
        "div",
        { class: "scroll" },
        h(
          "table",
          { class: "rows batches" },
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              heads.map((text) => h("th", { scope: "col", class: text === "Solved" ? "wide" : "n" }, text)),
            ),
          ),
          h(
            "tbody",
            {},
            [...batches]
              .reverse()
              .map((one) =>
                h(
                  "tr",
                  {},
                  h(
                    "td",
                    { class: "n" },
                    h(
                      "a",
                      { href: link(["s", context.source, "batch", one.batch]) },
                      `batch ${number(one.batch)}`,
                    ),
                  ),
                  h("td", { class: "wide" }, bar(one.solved, one.episodes)),
                  h("td", { class: "n" }, percent(one.episodes ? one.solved / one.episodes : NaN)),
                  h("td", { class: "n" }, number(one.groups)),
                  h("td", { class: one.rescued ? "n accent" : "n dim" }, number(one.rescued)),
                  h("td", { class: "n" }, number(one.without_signal)),
                  h("td", { class: one.dropped ? "n bad" : "n dim" }, number(one.dropped)),
                  h("td", { class: one.failed ? "n bad" : "n dim" }, number(one.failed)),
                ),
              ),
          ),
        ),
      ),
    ];
  }

  function bar(part, whole) {
    return h(
      "div",
      { class: "bar", role: "img", "aria-label": `${part} of ${whole} solved` },
      h("i", { css: { width: `${whole ? (100 * part) / whole : 0}%` } }),
    );
  }

  const ORDERS = {
    order: ["Order", (a, b) => a.place - b.place],
    task: ["Task", (a, b) => (a.task < b.task ? -1 : a.task > b.task ? 1 : 0)],
    success: ["Solved", (a, b) => a.solved / (a.episodes_count || 1) - b.solved / (b.episodes_count || 1)],
    signal: ["Signal", (a, b) => (b.sigma || 0) - (a.sigma || 0)],
  };

  async function renderBatch(context) {
    const batch = await arpo.api.get(["s", context.source, "batches", context.parts[0]]);
    context.previous = batch.previous;
    context.next = batch.next;
    const groups = batch.groups.map((group, place) => ({ ...group, place }));
    const sort = Object.hasOwn(ORDERS, context.query.sort) ? context.query.sort : "order";
    const down = context.query.down === "1";
    groups.sort(ORDERS[sort][1]);
    if (down) groups.reverse();
    const head = (name, kind) =>
      h(
        "th",
        {
          scope: "col",
          class: kind,
          "aria-sort": sort === name ? (down ? "descending" : "ascending") : null,
        },
        h(
          "button",
          {
            type: "button",
            "data-key": `sort ${name}`,
            onclick: () => context.setQuery(context, { sort: name, down: sort === name && !down ? "1" : "" }),
          },
          ORDERS[name][0],
          h("span", { "aria-hidden": "true" }, sort === name ? (down ? " ↓" : " ↑") : ""),
        ),
      );
    return [
      heading(
        context,
        `Batch ${number(batch.batch)}`,
        batch.previous && link(["s", context.source, "batch", batch.previous]),
        batch.next && link(["s", context.source, "batch", batch.next]),
        "batch",
      ),
      facts(batch.metrics),
      legend(),
      h(
        "div",
        { class: "scroll" },
        h(
          "table",
          { class: "rows groups" },
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              head("order", "n"),
              head("task"),
              h("th", { scope: "col" }, "Episodes"),
              head("success", "n"),
              head("signal", "n"),
              h("th", { scope: "col" }, "Note"),
            ),
          ),
          h(
            "tbody",
            {},
            groups.map((group) => groupRow(context, group)),
          ),
        ),
      ),
    ];
  }

  function groupRow(context, group) {
    const rescued = group.dots.some((dot) => dot.kind === "replayed");
    return h(
      "tr",
      { class: group.dropped ? "dropped" : null },
      h("td", { class: "n dim" }, group.place + 1),
      h(
        "td",
        { class: "task" },
        h("a", { href: link(["s", context.source, "group", group.group]) }, group.instruction || group.task),
        h("small", {}, h("a", { href: link(["s", context.source, "task", group.task]) }, group.task)),
      ),
      h(
        "td",
        { class: "dots" },
        group.dots.map((dot) => dotLink(context, dot)),
      ),
      h("td", { class: "n" }, `${group.solved}/${group.episodes_count}`),
      h("td", { class: group.signal ? "n" : "n dim" }, group.signal ? `σ ${number(group.sigma, 2)}` : "none"),
      h(
        "td",
        { class: "note" },
        group.dropped
          ? h("span", { class: "bad" }, `dropped: ${group.dropped}`)
          : rescued
            ? h("span", { class: "accent" }, "rescued by replay")
            : null,
      ),
    );
  }

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
    return known.length
      ? h(
          "dl",
          { class: "facts" },
          known.map(([name, label, format]) =>
            h("div", {}, h("dt", {}, label), h("dd", {}, format(metrics[name]))),
          ),
        )
      : null;
  }

  function heading(context, title, previous, next, noun, ...more) {
    const step = (address, sign, name) =>
      address
        ? h(
            "a",
            {
              class: "step",
              href: address,
              "aria-label": `${name} ${noun}`,
              title: `${name} ${noun} (${sign})`,
            },
            sign,
          )
        : h("span", { class: "step off", "aria-hidden": "true" }, sign);
    return h(
      "div",
      { class: "heading" },
      step(previous, "←", "Previous"),
      h("h1", {}, title),
      step(next, "→", "Next"),
      more,
    );
  }

  function batchKeys(event, context) {
    const goal = { ArrowLeft: context.previous, ArrowRight: context.next }[event.key];
    if (goal && event.target.getAttribute("role") !== "slider")
      location.hash = link(["s", context.source, "batch", goal]);
  }

  async function renderGroup(context) {
    const group = await arpo.api.get(["s", context.source, "groups", context.parts[0]]);
    context.previous = group.previous;
    context.next = group.next;
    const to = (name) => name && link(["s", context.source, "group", name]);
    const signal = group.signal
      ? `mean ${number(group.mean)}, σ ${number(group.sigma)}`
      : "no signal: all rewards are equal";
    return [
      heading(context, group.instruction || group.task, to(group.previous), to(group.next), "group"),
      h(
        "p",
        { class: "dim" },
        "group ",
        h("code", {}, group.group),
        ", task ",
        h("a", { href: link(["s", context.source, "task", group.task]) }, group.task),
        group.batch
          ? [
              ", ",
              h(
                "a",
                { href: link(["s", context.source, "batch", group.batch]) },
                `batch ${number(group.batch)}`,
              ),
            ]
          : null,
        `, ${signal}`,
      ),
      group.dropped ? h("p", { class: "warn" }, `Dropped: ${group.dropped}`) : null,
      group.advantage_note ? h("p", { class: "dim" }, group.advantage_note) : null,
      sideBySide(
        context,
        group.members.map((member) => ({
          head: memberHead(context, member),
          steps: member.steps_list || [],
          episode: member.episode,
        })),
      ),
    ];
  }

  function memberHead(context, member) {
    const title =
      member.kind === "error"
        ? h("b", {}, member.episode)
        : h(
            "a",
            { class: "name", href: link(["s", context.source, "episode", member.episode]) },
            member.episode,
          );
    if (member.kind === "error") return [h("div", {}, title), h("p", { class: "bad" }, member.error)];
    const badge = h(
      "span",
      { class: `badge ${member.score >= 0.5 ? "good" : "bad"}` },
      `score ${number(member.score)}`,
    );
    return [
      h("div", { class: "member" }, dotFace(member), title),
      h(
        "div",
        {},
        badge,
        h("span", { class: "badge" }, `reward ${number(member.reward)}`),
        h("span", { class: "badge" }, `advantage ${signed(member.advantage)}`),
      ),
      h(
        "p",
        { class: "dim" },
        `${(member.stop || "").replaceAll("_", " ")} after ${count(member.steps, "step")}`,
      ),
      member.kind === "replayed"
        ? h(
            "p",
            { class: "accent" },
            `Replayed from batch ${number(member.origin_batch)} (${number(member.age)} old). It replaced `,
            h("a", { href: link(["s", context.source, "episode", member.replaced]) }, member.replaced),
            member.replaced_dot ? ` (score ${number(member.replaced_dot.score)}).` : ".",
          )
        : null,
    ];
  }

  function dotFace(dot) {
    return heat(
      h("i", { class: `dot-face ${dot.kind}`, "aria-hidden": "true" }, dot.kind === "replayed" ? "↺" : ""),
      dot.score ?? 0,
    );
  }

  // columns: [{ head, steps, episode }]; one row per step, so that equal steps are beside each other.
  function sideBySide(context, columns) {
    const most = Math.max(0, ...columns.map((one) => one.steps.length));
    const rows = Array.from({ length: most }, (_, index) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, index + 1),
        columns.map((one) => h("td", {}, cell(context, one, one.steps[index]))),
      ),
    );
    return h(
      "div",
      { class: "scroll aligned", tabindex: 0, role: "region", "aria-label": "Episodes side by side" },
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("td", {}),
            columns.map((one) => h("th", { scope: "col" }, one.head)),
          ),
        ),
        h("tbody", {}, rows),
      ),
    );
  }

  function cell(context, column, step) {
    if (!step) return null;
    return [
      h(
        "a",
        {
          href: link(["s", context.source, "episode", column.episode], { step: step.step }),
          "aria-label": `Step ${step.step} of ${column.episode}`,
        },
        arpo.screen.screen(step, { width: 320 }),
      ),
      h("p", { class: "thought" }, step.thought),
      step.action_text ? h("code", {}, step.action_text) : null,
      step.error ? h("p", { class: "bad" }, step.error) : null,
    ];
  }

  function groupKeys(event, context) {
    const goal = { ArrowLeft: context.previous, ArrowRight: context.next }[event.key];
    if (goal && !event.target.classList.contains("aligned"))
      location.hash = link(["s", context.source, "group", goal]);
  }

  arpo.app.pages.batches = { title: () => "Batches", tab: "batches", render: renderBatches };
  arpo.app.pages.batch = {
    title: (context) => `Batch ${context.parts[0]}`,
    tab: "batches",
    render: renderBatch,
    keys: batchKeys,
  };
  arpo.app.pages.group = {
    title: (context) => `Group ${context.parts[0]}`,
    tab: "batches",
    render: renderGroup,
    keys: groupKeys,
  };
  return { sideBySide, heading, dotFace };
})();
