"use strict";
// Page "Group": the episodes of a group side by side, aligned by step.

arpo.groups = (() => {
  const { h } = arpo.dom;
  const { number, signed, count } = arpo.words;
  const { link } = arpo.app;

  async function render(context) {
    const group = await arpo.api.get(["s", context.source, "groups", context.parts[0]]);
    context.neighbours = { ArrowLeft: group.previous, ArrowRight: group.next };
    const to = (name) => name && link(["s", context.source, "group", name]);
    const columns = group.members.map((member) => ({
      head: memberHead(context, member),
      steps_list: member.steps_list || [],
      episode: member.episode,
    }));
    return [
      arpo.heading(group.instruction || group.task, to(group.previous), to(group.next), "group"),
      facts(context, group),
      group.dropped && h("p", { class: "warn" }, `Not trained on: ${group.dropped}`),
      group.note && h("p", { class: "dim" }, group.note),
      sideBySide(context, columns),
    ];
  }

  function facts(context, group) {
    const to = (page, name) => link(["s", context.source, page, name]);
    const spread = `, mean ${number(group.mean)}, σ ${number(group.sigma)}`;
    const signal = group.signal === false ? ", no signal: all rewards are equal" : group.signal && spread;
    return h(
      "p",
      { class: "dim" },
      "group ",
      h("code", {}, group.group),
      ", task ",
      h("a", { href: to("task", group.task) }, group.task),
      group.batch ? [", ", h("a", { href: to("batch", group.batch) }, `batch ${number(group.batch)}`)] : null,
      signal,
    );
  }

  function memberHead(context, member) {
    const to = (episode) => link(["s", context.source, "episode", episode]);
    if (member.kind === "error")
      return [
        h("div", { class: "member" }, arpo.dots.face(member), member.episode),
        h("p", { class: "bad" }, member.error),
      ];
    return [
      h(
        "div",
        { class: "member" },
        arpo.dots.face(member),
        h("a", { class: "name", href: to(member.episode) }, member.episode),
      ),
      h("span", { class: `badge ${member.score >= 0.5 ? "good" : "bad"}` }, `score ${number(member.score)}`),
      h("span", { class: "badge" }, `reward ${number(member.reward)}`),
      h("span", { class: "badge" }, `advantage ${signed(member.advantage)}`),
      h(
        "p",
        { class: "dim" },
        `${(member.stop || "").replaceAll("_", " ")} after ${count(member.steps, "step")}`,
      ),
      member.kind === "replayed" &&
        h(
          "p",
          { class: "accent" },
          `Replayed ${arpo.dots.origin(member)}. It replaced `,
          h("a", { href: to(member.replaced) }, member.replaced),
          member.replaced_dot ? ` (score ${number(member.replaced_dot.score)}).` : ".",
        ),
    ];
  }

  // columns: [{ head, steps_list, episode, final }]; one row per step, so that equal steps are beside each
  // other, and one for the final screenshots, if they are known.
  function sideBySide(context, columns) {
    const most = Math.max(0, ...columns.map((one) => one.steps_list.length));
    const row = (_, index) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, index + 1),
        columns.map((one) => h("td", {}, cell(context, one, one.steps_list[index]))),
      );
    const lastRow = h(
      "tr",
      {},
      h("th", { scope: "row" }, "end"),
      columns.map((one) => h("td", {}, finalCell(context, one))),
    );
    return h(
      "div",
      { class: "aligned", tabindex: 0, role: "region", "aria-label": "Episodes side by side" },
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
        h("tbody", {}, Array.from({ length: most }, row), columns.some((one) => one.final) && lastRow),
      ),
    );
  }

  function cell(context, column, step) {
    if (!step) return null;
    const address = link(["s", context.source, "episode", column.episode], { step: step.step });
    return [
      h(
        "a",
        { href: address, "aria-label": `Step ${step.step} of ${column.episode}` },
        arpo.screen.screen(step, { width: 320 }),
      ),
      h("p", { class: "thought" }, step.thought),
      step.action_text && h("code", {}, step.action_text),
      step.error && h("p", { class: "bad" }, step.error),
    ];
  }

  function finalCell(context, { episode, final, steps_list }) {
    if (!final) return null;
    const address = link(["s", context.source, "episode", episode], { step: steps_list.length + 1 });
    const label = `Final screenshot of ${episode}`;
    return [
      h("a", { href: address, "aria-label": label }, arpo.screen.screen({ shot: final }, { width: 320 })),
      h("p", { class: "dim" }, "Final screenshot"),
    ];
  }

  function keys(event, context) {
    const goal = context.neighbours?.[event.key];
    if (goal && !event.target.classList.contains("aligned"))
      location.hash = link(["s", context.source, "group", goal]);
  }

  const title = (context) => `Group ${context.parts[0]}`;
  arpo.app.pages.group = { title, tab: "batches", render, keys };
  return { sideBySide };
})();
