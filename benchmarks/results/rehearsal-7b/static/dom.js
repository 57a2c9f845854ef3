"use strict";
// Elements, numbers and words. All content is inserted as text; no function takes markup.
// Scripts are classic scripts, because browsers load no modules from file://.

const arpo = {};

arpo.dom = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  // h("a", { href: "#/runs", class: "on", onclick }, "Runs", child, …); null and false children are left out.
  function h(tag, properties, ...children) {
    return fill(document.createElement(tag), properties, children);
  }

  function svg(tag, properties, ...children) {
    return fill(document.createElementNS(SVG, tag), properties, children);
  }

  function fill(element, properties, children) {
    for (const [name, value] of Object.entries(properties || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name === "href") setLink(element, value);
      else if (name === "css") setCss(element, value);
      else element.setAttribute(name, value === true ? "" : String(value));
    }
    append(element, children);
    return element;
  }

  // Links lead to views of this page alone: text of a model can never become another address. A link to a view
  // that an export does not contain leads nowhere.
  function setLink(element, address) {
    if (!address.startsWith("#/")) address = "#/runs";
    if (arpo.api.contains(address)) element.setAttribute("href", address);
    else for (const [name, value] of [["role", "link"], ["aria-disabled", "true"]]) element.setAttribute(name, value);
  }

  // A link that saves a file of this server.
  function download(address, name, label) {
    const element = h("a", { class: "button", download: name }, label);
    if (address.startsWith("./api/")) element.setAttribute("href", address);
    return element;
  }

  // The content policy forbids style attributes; CSSOM is allowed.
  function setCss(element, values) {
    for (const [name, value] of Object.entries(values)) element.style.setProperty(name, value);
  }

  function append(element, children) {
    for (const child of children.flat(Infinity)) {
      if (child === null || child === undefined || child === false) continue;
      element.append(child instanceof Node ? child : document.createTextNode(String(child)));
    }
  }

  function replace(element, ...children) {
    element.replaceChildren();
    append(element, children);
    return element;
  }

  // heads: [["Score", "n"], …], text and class, or ready <th> elements; rows: <tr> elements.
  function table(heads, rows, { kind = "", caption = null } = {}) {
    const head = (one) =>
      one instanceof Node ? one : h("th", { scope: "col", class: one[1] || null }, one[0]);
    const columns = heads.map(head);
    for (const row of rows) label(row, columns, kind.includes("cards"));
    return h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: `rows ${kind}` },
        caption && h("caption", {}, caption),
        h("thead", {}, h("tr", {}, columns)),
        h("tbody", {}, rows),
      ),
    );
  }

  // Phones hide minor columns, and show the rows of "cards" one below the other, each value with its label.
  function label(row, columns, labelled) {
    [...row.children].forEach((cell, index) => {
      const column = columns[index];
      if (!column) return;
      if (column.classList.contains("minor")) cell.classList.add("minor");
      if (labelled) cell.dataset.label = column.textContent;
    });
  }

  // A form without a button: every change calls change(name, value). Fields: select, input.
  function filters(label, ...fields) {
    const form = { class: "filters", "aria-label": label, onsubmit: (event) => event.preventDefault() };
    return h("form", form, fields);
  }

  function select(id, label, options, value, change) {
    const option = ([key, text]) => h("option", { value: key, selected: key === value }, text);
    const box = h("select", { id, onchange: (event) => change(event.target.value) }, options.map(option));
    return h("label", {}, h("span", {}, label), box);
  }

  function input(id, label, value, change, attributes = { type: "text", maxlength: 200 }) {
    const field = { id, value, onchange: (event) => change(event.target.value), ...attributes };
    return h("label", {}, h("span", {}, label), h("input", field));
  }

  return { h, svg, replace, setCss, table, filters, select, input, download };
})();

arpo.words = (() => {
  const MINUS = "−";

  function number(value, digits = 3) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    let text;
    if (Number.isInteger(value)) text = size.toLocaleString("en");
    else if (size >= 1000) text = Math.round(size).toLocaleString("en");
    else if (size < 1e-3) text = size.toExponential(1);
    else text = String(Number(size.toPrecision(digits)));
    return value < 0 ? MINUS + text : text;
  }

  function percent(value) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    return `${(100 * value).toFixed(Number.isInteger(100 * value) ? 0 : 1)}%`;
  }

  function signed(value, digits = 2) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    const text = Math.abs(value).toFixed(digits);
    return (Number(text) === 0 ? "" : value > 0 ? "+" : MINUS) + text;
  }

  function seconds(value) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    if (value < 1) return `${Math.round(1000 * value)} ms`;
    if (value < 100) return `${value.toFixed(1)} s`;
    const minutes = Math.round(value / 60);
    return minutes < 100 ? `${minutes} min` : `${(minutes / 60).toFixed(1)} h`;
  }

  function count(value, noun) {
    return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
  }

  return { number, percent, signed, seconds, count };
})();
