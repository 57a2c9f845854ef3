"use strict";
// Page "Recipe": all settings of a run, or the settings in which two runs differ.

arpo.recipe = (() => {
  const { h, table, filters, select } = arpo.dom;
  const { number } = arpo.words;

  function value(setting) {
    const missing = setting === null || setting === undefined;
    return h(
      "code",
      {},
      missing ? "–" : typeof setting === "string" ? setting || '""' : JSON.stringify(setting),
    );
  }

  async function render(context) {
    const others = context.sources.filter((one) => one.id !== context.source && one.kind === "run");
    const { against = "", changed = "" } = context.query;
    const options = [["", "nothing"], ...others.map((one) => [one.id, arpo.app.nameOf(one)])];
    const toggle = () => context.setQuery(context, { changed: changed ? "" : "1" });
    const only = h(
      "label",
      { class: "inline" },
      h("input", { type: "checkbox", id: "recipe-changed", checked: changed === "1", onchange: toggle }),
      "only settings that differ from the default",
    );
    return [
      h("h1", {}, "Recipe"),
      filters(
        "Comparison",
        others.length > 0 &&
          select("recipe-against", "Compare with", options, against, (id) =>
            context.setQuery(context, { against: id }),
          ),
        !against && only,
      ),
      against ? await difference(context, against) : await all(context, changed === "1"),
    ];
  }

  async function settings(source) {
    const { sections } = await arpo.api.get(["s", source, "recipe"]);
    return new Map(sections.flatMap((section) => section.keys.map((one) => [one.key, one])));
  }

  async function difference(context, against) {
    const [left, right] = await Promise.all([settings(context.source), settings(against)]);
    const keys = [...new Set([...left.keys(), ...right.keys()])];
    const written = (side, key) => JSON.stringify(side.get(key)?.value);
    const different = keys.filter((key) => written(left, key) !== written(right, key));
    const other = context.sources.find((one) => one.id === against);
    const row = (key) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, h("code", {}, key)),
        h("td", { class: "was" }, value(left.get(key)?.value)),
        h("td", { class: "now" }, value(right.get(key)?.value)),
        h("td", { class: "dim text" }, (left.get(key) || right.get(key)).help),
      );
    return [
      h("p", { class: "dim" }, `${number(different.length)} of ${number(keys.length)} settings differ.`),
      table(
        [
          ["Setting"],
          [arpo.app.nameOf(context.info)],
          [other ? arpo.app.nameOf(other) : against],
          ["Meaning"],
        ],
        different.map(row),
        {
          kind: "recipe",
        },
      ),
    ];
  }

  async function all(context, changed) {
    const { sections } = await arpo.api.get(["s", context.source, "recipe"]);
    return sections.map((section) => {
      const shown = section.keys.filter((one) => !changed || one.changed);
      const heads = [["Setting"], ["Value"], ["Default"], ["Meaning", "wide"]];
      return (
        shown.length > 0 && [h("h2", {}, section.section), table(heads, shown.map(row), { kind: "recipe" })]
      );
    });
  }

  function row(one) {
    return h(
      "tr",
      { class: one.changed ? "changed" : null },
      h("th", { scope: "row" }, h("code", {}, one.key)),
      h("td", {}, value(one.value)),
      h("td", { class: "dim" }, one.changed && value(one.default)),
      h("td", { class: "dim text" }, one.help, ...one.history.map((text) => h("p", {}, text))),
    );
  }

  arpo.app.pages.recipe = { title: () => "Recipe", tab: "recipe", render };
})();
