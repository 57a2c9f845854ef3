"use strict";
// Router: the fragment of the address names the view, as in #/s/desk/batch/3?sort=signal.

arpo.app = (() => {
  const { h, replace } = arpo.dom;
  const POLL = 2000,
    SLOW = 200; // milliseconds until a page says that it is loading
  const pages = {}; // "batch" → { title, tab, render(context) → nodes, keys(event, context), shown() }
  const TABS = ["report", "batches", "episodes", "tasks", "faults", "timeline", "recipe"];
  const TABS_OF = {
    run: TABS,
    collected: ["report", "episodes", "tasks", "faults", "recipe"],
    played: ["episodes", "recipe"],
    osworld: ["episodes", "tasks", "faults"],
  };
  // Name of a source: in a comparison, all folders of runs are called seed-N.
  const nameOf = (one) => (one.method ? `${one.method}, seed ${one.seed}` : one.title);
  const byId = (id) => document.getElementById(id);
  let sources = { sources: [], errors: [] },
    current = null,
    drawn = "", // stamps of the view on the screen
    turn = 0;

  function link(parts, query) {
    const words = new URLSearchParams(
      Object.entries(query || {}).filter(
        ([, value]) => value !== "" && value !== undefined && value !== null,
      ),
    );
    return "#/" + parts.map((part) => encodeURIComponent(part)).join("/") + (words.size ? "?" + words : "");
  }

  // View of a point of a curve: a batch, or the evaluation before training.
  function stepLink(source, step) {
    return step > 0 ? link(["s", source, "batch", step]) : link(["s", source, "episodes"], { phase: "eval0" });
  }

  // Follow a link, if its view is there: an export has only what was chosen.
  function go(address) {
    if (arpo.api.contains(address)) location.hash = address;
  }

  // An address without a view is the first view of a report, otherwise the list of runs.
  function parse(fragment) {
    if (sources.start && (!fragment || !sources.sources.length)) fragment = sources.start;
    const [path, query = ""] = fragment.replace(/^#?\/?/, "").split(/\?(.*)/s);
    const parts = path.split("/").filter(Boolean).map(decode);
    const query_ = Object.fromEntries(new URLSearchParams(query));
    if (parts[0] === "s")
      return { source: parts[1], page: parts[2] || "batches", parts: parts.slice(3), query: query_ };
    return { source: null, page: parts[0] || "runs", parts: parts.slice(1), query: query_ };
  }

  function decode(text) {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  }

  // Address of this view with another query; "" removes a word.
  function withQuery(context, changes) {
    const parts = context.source
      ? ["s", context.source, context.page, ...context.parts]
      : [context.page, ...context.parts];
    return link(parts, { ...context.query, ...changes });
  }

  // Changes the newest query, which may not be drawn yet, without a new entry in the history.
  function setQuery(context, changes) {
    location.replace(withQuery({ ...context, query: parse(location.hash).query }, changes));
  }

  async function show({ quiet = false } = {}) {
    const mine = ++turn;
    const place = parse(location.hash);
    const state = stamps(place.source);
    const page = Object.hasOwn(pages, place.page) ? pages[place.page] : null;
    const source = sources.sources.find((one) => one.id === place.source) || null;
    const context = { ...place, info: source, sources: sources.sources, link, withQuery, setQuery };
    const same =
      current &&
      current.page === place.page &&
      current.source === place.source &&
      current.parts.join("/") === place.parts.join("/");
    const main = byId("main");
    if (!quiet) main.setAttribute("aria-busy", "true");
    const waiting = quiet ? 0 : setTimeout(() => loading(page ? page.title(context) : ""), SLOW);
    let content;
    try {
      if (!page) throw new Error(`There is no page ${place.page}.`);
      if (place.source !== null && !source) throw new Error(`There is no run ${place.source}.`);
      content = await page.render(context);
    } catch (error) {
      content = h(
        "div",
        { class: "notice", role: "alert" },
        h("h1", {}, "Nothing to show"),
        h("p", {}, error.message),
        h("p", {}, h("a", { href: "#/runs" }, "All runs")),
      );
    }
    clearTimeout(waiting);
    if (mine !== turn) return;
    loading("");
    const focus = same ? focusKey() : null,
      scrolled = same ? scrolls() : [],
      first = current === null;
    current = context;
    drawn = state;
    replace(main, content);
    main.removeAttribute("aria-busy");
    header(context, page);
    if (!same) window.scrollTo(0, 0);
    for (const [selector, top, left] of scrolled) document.querySelector(selector)?.scrollTo(left, top);
    if (page && page.shown) page.shown();
    if (focus) restoreFocus(focus);
    else if (!same && !first) main.focus({ preventScroll: true });
  }

  // Says that a page takes long; "" when it is there.
  function loading(title) {
    byId("loading").hidden = !title;
    replace(byId("loading"), title && `Loading: ${title} …`);
  }

  // Positions of all parts that scroll, for the same view after a redraw.
  function scrolls() {
    const parts = ["html", ".aligned"].map((name) => [name, document.querySelector(name)]);
    return parts.filter(([, part]) => part).map(([name, part]) => [name, part.scrollTop, part.scrollLeft]);
  }

  // The focused element is found again after a redraw by its id, its data-key or its address.
  function focusKey() {
    const element = document.activeElement;
    if (!element || !byId("main").contains(element)) return null;
    const selection =
      element.selectionStart === undefined ? null : [element.selectionStart, element.selectionEnd];
    return { key: element.id || element.dataset.key || element.getAttribute("href"), selection };
  }

  function restoreFocus({ key, selection }) {
    if (!key) return;
    const found = [...byId("main").querySelectorAll("a, button, input, select, summary, [tabindex]")].find(
      (element) => (element.id || element.dataset.key || element.getAttribute("href")) === key,
    );
    if (!found) return;
    found.focus({ preventScroll: true });
    if (selection && found.type === "text") found.setSelectionRange(...selection);
  }

  function header(context, page) {
    const { info, source } = context;
    const title = page ? page.title(context) : "Nothing to show";
    document.title = `${info ? nameOf(info) + ": " : ""}${title} · arpo view`;
    const tab = (name, address) => {
      const here = (page && page.tab === name) || context.page === name;
      const failures = name === "faults" && info.failures;
      return h(
        "a",
        { href: address, "aria-current": here ? "page" : null },
        name[0].toUpperCase() + name.slice(1),
        failures ? h("span", { class: "count" }, failures) : null,
      );
    };
    replace(
      byId("tabs"),
      (context.sources.length > 0 || !arpo.api.exported) && tab("runs", "#/runs"),
      info && [
        h(
          "span",
          { class: "crumb", title: info.folder },
          nameOf(info),
          info.live && h("span", { class: "live" }, "live"),
          info.indexing && h("span", { class: "dim" }, `reading ${arpo.words.percent(info.indexing.share)}`),
        ),
        (TABS_OF[info.kind] || TABS).map((name) => tab(name, link(["s", source, name]))),
      ],
    );
  }

  function quote(text) {
    return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
  }

  // The command that opens this view.
  function command() {
    return `${sources.command || "arpo view"} --at ${quote(location.hash.slice(1) || "/runs")}`;
  }

  async function copy(text, name) {
    try {
      await navigator.clipboard.writeText(text);
      say(`${name} copied`);
    } catch {
      const box = byId("copied");
      box.value = text;
      box.hidden = false;
      box.select();
      say(`${name} selected: press Ctrl-C`);
    }
  }

  function say(text) {
    replace(byId("status"), text);
  }

  async function poll() {
    try {
      sources = await arpo.api.get(["sources"]);
      byId("offline").hidden = true;
      if (stamps(parse(location.hash).source) !== drawn && !document.hidden && !editing()) await show({ quiet: true });
    } catch {
      byId("offline").hidden = false;
    }
    setTimeout(poll, POLL);
  }

  // The state of the files behind a view: of one run, or of all.
  function stamps(source) {
    const relevant = source ? sources.sources.filter((one) => one.id === source) : sources.sources;
    return JSON.stringify(relevant.map((one) => [one.id, one.stamp, one.live, one.indexing]));
  }

  // A redraw would interrupt typing, until the text is part of the address, or an open list.
  function editing() {
    const element = document.activeElement;
    return element?.tagName === "SELECT" || (element?.tagName === "INPUT" && element.value !== element.defaultValue);
  }

  function press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
    if (event.key === "/" && !typing) {
      byId("search-text").focus();
      event.preventDefault();
    } else if (event.key === "?" && !typing) {
      byId("help").showModal();
    } else if (!typing && current && !document.querySelector("dialog[open]")) {
      const page = Object.hasOwn(pages, current.page) ? pages[current.page] : null;
      if (page && page.keys) page.keys(event, { ...current, query: parse(location.hash).query });
    }
  }

  async function start() {
    window.addEventListener("hashchange", () => show());
    document.addEventListener("keydown", press);
    byId("search").addEventListener("submit", (event) => {
      event.preventDefault();
      location.hash = link(["search"], { text: byId("search-text").value });
    });
    byId("copy-link").addEventListener("click", () => copy(location.href, "Link"));
    byId("copy-command").addEventListener("click", () => copy(command(), "Command"));
    byId("skip").addEventListener("click", () => byId("main").focus());
    byId("keys").addEventListener("click", () => byId("help").showModal());
    byId("search").hidden = arpo.api.exported;
    try {
      sources = await arpo.api.get(["sources"]);
    } catch (error) {
      sources = { sources: [], errors: [error.message] };
    }
    await show();
    if (!arpo.api.exported) setTimeout(poll, POLL);
  }

  return { pages, link, stepLink, go, start, nameOf, errors: () => sources.errors };
})();
