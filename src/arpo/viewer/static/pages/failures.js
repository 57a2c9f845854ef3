"use strict";
// Page "Failures": faults of environments and engine.

arpo.failures = (() => {
  const { h, table } = arpo.dom;
  const { number } = arpo.words;
  const { link } = arpo.app;

  async function render(context) {
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

  arpo.app.pages.failures = { title: () => "Failures", tab: "failures", render };
  return { kinds };
})();
