"use strict";
// Page "Search": views of all runs by their names, and episodes by the words of their answers.

arpo.search = (() => {
  const { h, table } = arpo.dom;
  const { count } = arpo.words;
  const { link } = arpo.app;

  async function render(context) {
    const text = context.query.text || "";
    const answer = text ? await arpo.api.get(["search"], { text }) : { total: 0, places: [], results: [] };
    const { total, places, results } = answer;
    const found = [places.length && count(places.length, "page"), count(total, "episode")].filter(Boolean);
    return [
      h("h1", {}, "Search ", h("small", {}, text ? `${found.join(" and ")} with “${text}”` : "type a text above")),
      places.length ? table(HEADS, places.map(row)) : null,
      places.length && results.length ? h("h2", {}, "Episodes with this text in their answers") : null,
      results.length ? arpo.episodes.table(results, context, null) : null,
    ];
  }

  const HEADS = [["Run"], ["Kind"], ["Found"], ["About", "wide"]];

  function row(place) {
    const address = link(["s", place.source, ...place.parts], place.query);
    return h(
      "tr",
      {},
      h("td", {}, place.source),
      h("td", { class: "dim" }, place.kind),
      h("td", {}, h("a", { class: "name", href: address }, place.title)),
      h("td", { class: "text" }, place.detail),
    );
  }

  arpo.app.pages.search = { title: () => "Search", render };
})();
