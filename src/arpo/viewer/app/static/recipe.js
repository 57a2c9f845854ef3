"use strict";
// Page "Recipe": all settings of a run, or the settings in which two runs differ.

arpo.recipe = (() => {
  const { h } = arpo.dom;
  const { number } = arpo.words;

  const value = (setting) =>
    h(
      "code",
      {},
      setting === null || setting === undefined
        ? "–"
        : typeof setting === "string"
          ? setting || '""'
          : JSON.stringify(setting),
    );

  async function render(context) {
    const others = context.sources.filter((one) => one.id !== context.source && one.kind === "run");
    const against = context.query.against || "";
    const choose = h(
      "label",
      {},
      h("span", {}, "Compare with"),
      h(
        "select",
        {
          id: "recipe-against",
          onchange: (event) => context.setQuery(context, { against: event.target.value, changed: "" }),
        },
        h("option", { value: "" }, "nothing"),
        others.map((one) => h("option", { value: one.id, selected: one.id === against }, one.title)),
      ),
    );
    const changed = context.query.changed === "1";
    const only = against
      ? null
      : h(
          "label",
          { class: "inline" },
          h("input", {
            type: "checkbox",
            id: "recipe-changed",
            checked: changed,
            onchange: () => context.setQuery(context, { changed: changed ? "" : "1" }),
          }),
          "only settings that differ from the default",
        );
    return [
      h("h1", {}, "Recipe"),
      h(
        "form",
        { class: "filters", onsubmit: (event) => event.preventDefault() },
        others.length ? choose : null,
        only,
      ),
      against ? await difference(context, against) : await all(context, changed),
    ];
  }

  async function difference(context, against) {
    const answer = await compare(context.source, against);
    const title = (id) => context.sources.find((one) => one.id === id)?.title || id;
    return [
      h(
        "p",
        { class: "dim" },
        `${number(answer.different.length)} settings differ, ${number(answer.same)} are equal.`,
      ),
      h(
        "div",
        { class: "scroll" },
        h(
          "table",
          { class: "rows recipe" },
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              ["Setting", title(context.source), title(against), "Meaning"].map((text) =>
                h("th", { scope: "col" }, text),
              ),
            ),
          ),
          h(
            "tbody",
            {},
            answer.different.map((one) =>
              h(
                "tr",
                {},
                h("th", { scope: "row" }, h("code", {}, one.key)),
                h("td", { class: "was" }, value(one.a)),
                h("td", { class: "now" }, value(one.b)),
                h("td", { class: "dim text" }, one.help),
              ),
            ),
          ),
        ),
      ),
    ];
  }

  // An export has no answer for every pair; the two recipes are enough.
  async function compare(a, b) {
    if (!arpo.api.exported) return arpo.api.get(["recipes"], { a, b });
    const [first, second] = await Promise.all([a, b].map((id) => arpo.api.get(["s", id, "recipe"])));
    const settings = (recipe) =>
      new Map(recipe.sections.flatMap((section) => section.keys.map((one) => [one.key, one])));
    const left = settings(first),
      right = settings(second);
    const keys = [...new Set([...left.keys(), ...right.keys()])];
    const different = keys
      .filter((key) => JSON.stringify(left.get(key)?.value) !== JSON.stringify(right.get(key)?.value))
      .map((key) => ({
        key,
        a: left.get(key)?.value,
        b: right.get(key)?.value,
        help: (left.get(key) || right.get(key)).help,
      }));
    return { different, same: keys.length - different.length };
  }

  async function all(context, changed) {
    const { sections } = await arpo.api.get(["s", context.source, "recipe"]);
    return sections.map((section) => {
      const shown = section.keys.filter((one) => !changed || one.changed);
      return shown.length
        ? [
            h("h2", {}, section.section),
            h(
              "div",
              { class: "scroll" },
              h(
                "table",
                { class: "rows recipe" },
                h(
                  "thead",
                  { class: "hidden" },
                  h(
                    "tr",
                    {},
                    ["Setting", "Value", "Default", "Meaning"].map((text) => h("th", { scope: "col" }, text)),
                  ),
                ),
                h(
                  "tbody",
                  {},
                  shown.map((one) =>
                    h(
                      "tr",
                      { class: one.changed ? "changed" : null },
                      h("th", { scope: "row" }, h("code", {}, one.key)),
                      h("td", {}, value(one.value)),
                      h("td", { class: "dim" }, one.changed ? ["default ", value(one.default)] : null),
                      h("td", { class: "dim text" }, one.help),
                    ),
                  ),
                ),
              ),
            ),
          ]
        : null;
    });
  }

  arpo.app.pages.recipe = { title: () => "Recipe", tab: "recipe", render };
})();
