// Draws a report from the data in the page: headings, tables, plots. Loads nothing.
//
// data = {title, subtitle, sound, verdict, sections: [{title, text, table: {columns, rows}, plot: <Vega-Lite spec>}], facts}
'use strict';

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// A long one is folded: the plot says the same.
const FOLDED_FROM = 20;

// Columns of words to the left, of numbers to the right.
function table(content) {
  const wordy = content.columns.map((_, i) => content.rows.every((cells) => !/[0-9]/.test(String(cells[i]).charAt(0))));
  const kind = (i) => (i === 0 || wordy[i] && content.rows.some((cells) => cells[i] !== '') ? {class: 'words'} : {});
  const row = (cells, name) => element('tr', {}, ...cells.map((cell, i) => element(name, kind(i), String(cell))));
  const made = element('table', {}, element('thead', {}, row(content.columns, 'th')),
                       element('tbody', {}, ...content.rows.map((cells) => row(cells, 'td'))));
  const place = element('div', {class: 'table'}, made);
  if (content.rows.length < FOLDED_FROM) return place;
  return element('details', {class: 'rows'}, element('summary', {}, `${content.rows.length} rows`), place);
}

// Where the program was built without the plotting library, tables remain.
function plot(spec) {
  const place = element('div', {class: 'plot'});
  if (typeof vega === 'undefined' || typeof vegaLite === 'undefined') {
    place.append(element('p', {class: 'subtitle'}, 'This program was built without npm, so there is no plot here.'));
    return place;
  }
  const config = {font: 'system-ui, sans-serif', view: {stroke: null}, axis: {gridColor: '#e3e8ee', domainColor: '#9aa7b4', tickColor: '#9aa7b4'}};
  const compiled = vegaLite.compile({width: 720, height: 260, ...spec, config}).spec;
  new vega.View(vega.parse(compiled), {renderer: 'svg', container: place, hover: true}).run();
  return place;
}

function draw(data, into) {
  into.append(element('h1', {}, data.title), element('p', {class: 'subtitle'}, data.subtitle),
              element('p', {}, element('span', {class: 'verdict ' + (data.sound ? 'good' : 'bad')}, data.verdict)));
  for (const section of data.sections) {
    into.append(element('h2', {}, section.title));
    if (section.text) into.append(element('p', {}, section.text));
    if (section.plot) into.append(plot(section.plot));
    if (section.table) into.append(table(section.table));
  }
  into.append(element('details', {}, element('summary', {}, 'All data'), element('pre', {}, JSON.stringify(data.facts, null, 1))));
}

draw(JSON.parse(document.getElementById('data').textContent), document.getElementById('report'));
