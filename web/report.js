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
  const attributes = (i, name) => (name === 'th' ? {...kind(i), scope: 'col'} : kind(i));
  const row = (cells, name) => element('tr', {}, ...cells.map((cell, i) => element(name, attributes(i, name), String(cell))));
  const made = element('table', {}, element('thead', {}, row(content.columns, 'th')),
                       element('tbody', {}, ...content.rows.map((cells) => row(cells, 'td'))));
  const place = element('div', {class: 'table'}, made);
  if (content.rows.length < FOLDED_FROM) return place;
  return element('details', {class: 'rows'}, element('summary', {}, `${content.rows.length} rows`), place);
}

// Okabe and Ito's colours, which those tell apart who see fewer; but for their yellow, which nobody sees on white. Then dark ones, as far from
// these as these are from each other: the figures with the most series have eleven.
const COLORS = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#56b4e9', '#e69f00', '#000000', '#552200', '#440077', '#774455', '#0033bb'];

const CONFIG = {
  font: 'system-ui, sans-serif',
  view: {stroke: null},
  axis: {gridColor: '#e3e8ee', domainColor: '#9aa7b4', tickColor: '#9aa7b4'},
  legend: {labelLimit: 0},  // names that were cut would be one name
  range: {category: COLORS},
};

// Where there can be no plot, as where the program was built without the plotting library, all else remains.
function plot(spec) {
  const place = element('div', {class: 'plot'});
  const say = (why) => place.replaceChildren(element('p', {class: 'subtitle'}, why));
  const fail = (error) => say(`This plot cannot be drawn: ${error.message}`);
  if (typeof vega === 'undefined' || typeof vegaLite === 'undefined') {
    say('This program was built without npm, so there is no plot here.');
    return place;
  }
  try {
    const compiled = vegaLite.compile({width: 720, height: 260, ...spec, config: CONFIG}).spec;
    new vega.View(vega.parse(compiled), {renderer: 'svg', container: place, hover: true}).runAsync().catch(fail);
  } catch (error) {
    fail(error);
  }
  return place;
}

// Of many points the text is long: it is made when somebody wants to read it.
function all(facts) {
  const text = element('pre', {});
  const made = element('details', {}, element('summary', {}, 'All data'), text);
  made.addEventListener('toggle', () => { text.textContent = JSON.stringify(facts, null, 1); }, {once: true});
  return made;
}

function draw(data, into) {
  document.title = data.title;
  into.append(element('h1', {}, data.title), element('p', {class: 'subtitle'}, data.subtitle),
              element('p', {}, element('span', {class: 'verdict ' + (data.sound ? 'good' : 'bad')}, data.verdict)));
  for (const section of data.sections) {
    into.append(element('h2', {}, section.title));
    if (section.text) into.append(element('p', {}, section.text));
    if (section.plot) into.append(plot(section.plot));
    if (section.table) into.append(table(section.table));
  }
  into.append(all(data.facts));
}

draw(JSON.parse(document.getElementById('data').textContent), document.getElementById('report'));
