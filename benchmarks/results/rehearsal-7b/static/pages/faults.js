"use strict";
// Page "Faults": faults of environments and engine.

arpo.faults = (() => {
  const { h, table } = arpo.dom;
  const { number } = arpo.words;
  const { link } = arpo.app;

  async function render(context) {
    const answer = await arpo.api.get(["s", context.source, "failures"]);
    if (!answer.total)
      return [h("h1", {}, "Faults"), h("p", { class: "notice" }, "All episodes could be played.")];
    return [
      h("h1", {}, "Faults ", h("small", {}, number(answer.total))),
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

  const KIND_HEADS = [["Kind"], ["In", "minor"], ["Host", "minor"], ["Count", "n"], ["Tasks", "n minor"], ["Message", "wide"]];

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
    ["Task", "minor"],
    ["Batch", "minor"],
    ["Kind"],
    ["In", "minor"],
    ["Host", "minor"],
    ["Attempts", "n minor"],
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

  arpo.app.pages.faults = { title: () => "Faults", tab: "faults", render };
  arpo.app.pages.failures = arpo.app.pages.faults; // the address in links of earlier versions
  return { kinds };
})();
