'use strict';
// The page: the status when something has happened, and every two seconds; the events as they come.

const $ = (id) => document.getElementById(id);
const rows = new Map();
const LINES = 200;
// How often the status is asked for when nothing happens, and how often at most when much does.
const EVERY = 2000;
const SOON = 100;
// How often the timelines are drawn at most, and when movement is not wanted.
const FRAME = 250;
const CALM = 5000;
let status = null;
let skew = 0;
let run = null;
let stale = true;

const say = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};

const node = (name, text, className) => {
  const element = document.createElement(name);
  if (text != null) element.textContent = text;
  if (className) element.className = className;
  return element;
};

const glyph = (kind) => {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('class', 'glyph');
  svg.setAttribute('aria-hidden', 'true');
  shape('use', { href: `#s-${kind}` }, svg);
  return svg;
};

// Makes the pairs of a <dl> these, and leaves alone what is so already.
const tell = (list, pairs) => {
  while (list.children.length > pairs.length) list.lastChild.remove();
  pairs.forEach(([name, value], i) => {
    const pair = list.children[i] ?? list.appendChild(node('div'));
    if (!pair.firstChild) pair.append(node('dt'), node('dd'));
    say(pair.firstChild, name);
    say(pair.lastChild, value);
  });
};

class Row {
  constructor(name) {
    this.history = new History();
    this.cpu = null;
    // An order is being carried out.
    this.ordering = false;
    const fragment = $('backend').content.cloneNode(true);
    this.element = fragment.firstElementChild;
    const find = (selector) => this.element.querySelector(selector);
    this.parts = {
      word: find('.word'), use: find('use'), strip: find('.strip'), facts: find('.facts'),
      trouble: find('.trouble'), said: find('.trouble pre'), more: find('.more dl'), lines: find('.more > pre'),
      orders: find('.orders'), outcome: find('.outcome'),
    };
    this.element.dataset.name = name;
    const link = find('a');
    link.textContent = name;
    link.href = `/${encodeURIComponent(name)}/`;
    link.title = `Opening ${name} starts it`;
    this.parts.orders.setAttribute('aria-label', `Orders to ${name}`);
    for (const button of this.parts.orders.querySelectorAll('button')) {
      button.setAttribute('aria-label', `${button.textContent} ${name}`);
      button.addEventListener('click', () => this.order(name, button));
    }
    $('backends').append(this.element);
  }

  show(b, admin) {
    const { parts } = this;
    const { shape: kind, word } = standing(b);
    this.element.dataset.state = b.state;
    this.element.dataset.shape = kind;
    parts.use.setAttribute('href', `#s-${kind}`);
    say(parts.word, word);
    const cold = b.cold_starts_seconds;
    const process = b.processes.at(-1);
    const facts = [];
    if (b.waiting) facts.push(['callers waiting', String(b.waiting)]);
    if (cold.length) facts.push(['cold start', `${seconds(cold.at(-1))}${cold.length > 2 ? `, median ${seconds(median(cold))}` : ''}`]);
    facts.push(['calls made', String(b.coalescing.led + b.coalescing.passed_by)], ['shared', String(b.coalescing.joined)]);
    if (process?.rss_bytes != null) {
      facts.push(['memory', bytes(process.rss_bytes)], ['processor', this.processor(process)]);
    }
    tell(parts.facts, facts);
    const error = b.last_error;
    parts.trouble.hidden = !(error && b.failing);
    if (error && b.failing) {
      const next = b.state === 'backing_off' && error.retry_after_seconds ? ` (tried again after ${seconds(error.retry_after_seconds)})` : '';
      say(parts.trouble.firstElementChild, `Last error: ${error.text}${next}`);
      parts.said.parentElement.hidden = !error.detail;
      say(parts.said, lastLines(error.detail));
    }
    tell(parts.more, [
      ['starts', String(b.starts)], ['restarts', String(b.restarts)], ['reloads', String(b.reloads)],
      ['evictions', String(b.evictions)], ['crashes', String(b.crashes)],
      ['idle bound', b.pinned ? 'pinned' : b.idle_after_seconds == null ? 'none' : seconds(b.idle_after_seconds)],
      ['process', process ? String(process.pid) : '–'],
      ['processes', String(process?.processes ?? '–')],
      ['threads', String(process?.threads ?? '–')], ['open files', String(process?.fds ?? '–')],
    ]);
    const lines = (process?.last_lines ?? []).join('\n');
    parts.lines.hidden = !lines;
    say(parts.lines, lines);
    parts.orders.hidden = !admin;
    const able = {
      start: b.state === 'stopped' || b.state === 'backing_off', reload: b.state === 'running',
      stop: b.state === 'running' || b.state === 'starting', unload: b.state !== 'unloaded', load: b.state === 'unloaded',
    };
    for (const [shown, other] of [['start', 'stop'], ['load', 'unload']]) {
      const swap = able[shown] ? [shown, other] : [other, shown];
      const [now, then] = swap.map((order) => parts.orders.querySelector(`[data-order="${order}"]`));
      const focused = document.activeElement === then;
      now.hidden = false;
      if (focused) now.focus();
      then.hidden = true;
    }
    for (const button of parts.orders.querySelectorAll('button')) {
      button.setAttribute('aria-disabled', String(this.ordering || !able[button.dataset.order]));
    }
  }

  // What it used since the status before, if that is not too short a time.
  processor(process) {
    const before = this.cpu;
    this.cpu = { pid: process.pid, used: process.cpu_seconds, at: status.at_ms };
    if (before?.pid !== process.pid) {
      this.share = null;
      return '0 %';
    }
    if (this.cpu.at - before.at < 900) {
      this.cpu = before;
      return this.share ?? '0 %';
    }
    this.share = `${Math.round((100_000 * (this.cpu.used - before.used)) / (this.cpu.at - before.at))} %`;
    return this.share;
  }

  async order(name, button) {
    if (button.getAttribute('aria-disabled') === 'true') return;
    const { order } = button.dataset;
    const { outcome } = this.parts;
    this.ordering = true;
    button.setAttribute('aria-disabled', 'true');
    say(outcome, `${order}…`);
    try {
      const answer = await fetch(`/_orders/${encodeURIComponent(name)}/${order}`, { method: 'POST' });
      const text = await answer.text();
      const refusal = () => { try { return JSON.parse(text).error ?? text; } catch { return text; } };
      say(outcome, answer.ok ? `${order}: done` : `${order}: ${refusal()}`);
    } catch {
      say(outcome, `${order}: the host does not answer`);
    }
    this.ordering = false;
    refresh();
  }

  draw(now, span) {
    this.history.draw(this.parts.strip, now, span);
  }
}

const row = (name) => {
  if (!rows.has(name)) rows.set(name, new Row(name));
  return rows.get(name);
};

const showRoom = ({ ceiling }) => {
  const { limit, used, holders, waiting } = ceiling;
  const total = limit == null ? `${used} in use, no limit` : `${used} of ${limit} in use`;
  say($('room-sum'), waiting.length ? `${total}, ${waiting.length} in line` : total);
  const box = (name, kind, text, weight) => {
    const item = node('li', null, `holder ${kind}`);
    item.dataset.weight = Math.min(weight, 12);
    if (kind !== 'free') item.append(glyph(kind));
    const words = node('span');
    words.append(node('b', name), ` ${text}`);
    item.append(words);
    return item;
  };
  const items = holders.map((h) => {
    const kind = { uncounted: 'busy' }[h.phase] ?? h.phase;
    const idle = h.idle_seconds == null ? '' : ` ${age(h.idle_seconds)}`;
    const word = { busy: count(h.in_flight ?? 0, 'call'), idle: `idle${idle}` }[h.phase] ?? h.phase;
    return box(h.name ?? 'unnamed', kind, `${word}${h.weight === 1 ? '' : `, ${h.weight} units`}${h.pinned ? ', pinned' : ''}`, h.weight);
  });
  const free = limit == null ? 0 : Math.max(0, limit - used);
  if (free) items.push(box(String(free), 'free', 'free', free));
  $('room').replaceChildren(...items);
  $('line-box').hidden = waiting.length === 0;
  $('line').replaceChildren(...waiting.map((w) => {
    const item = node('li');
    item.append(node('b', w.name ?? 'unnamed'), ` for ${age(w.waited_seconds)}${w.weight === 1 ? '' : `, ${w.weight} units`}`);
    return item;
  }));
};

// Another run of the host knows nothing of what was before.
const runs = (its) => {
  if (run !== null && run !== its) {
    for (const one of rows.values()) one.history = new History();
    $('log').replaceChildren();
  }
  run = its;
};

const show = (next) => {
  runs(String(next.run));
  status = next;
  skew = next.at_ms - Date.now();
  $('no-orders').hidden = next.admin;
  showRoom(next);
  for (const b of next.backends) {
    row(b.name).show(b, next.admin);
    row(b.name).history.agree(b, next.at_ms);
  }
};

// One request at a time; what happens meanwhile asks for another one.
let asking = false;
let again = false;
const refresh = async () => {
  again = true;
  if (asking) return;
  asking = true;
  again = false;
  try {
    const answer = await fetch('/_status');
    if (answer.ok) show(await answer.json());
    stale = true;
  } catch {
    link('lost', 'no connection to the host');
  }
  await new Promise((done) => { setTimeout(done, SOON); });
  asking = false;
  if (again) refresh();
};

const link = (state, text) => {
  $('link').dataset.link = state;
  say($('link'), text);
};

const log = (e) => {
  const late = e.event === 'stopped' && e.generation < row(e.backend).history.generation;
  const text = late ? `has let its old instance go, after ${ms(e.took_ms)}` : sentence(e);
  if (!text) return;
  const item = node('li');
  const bad = ['died', 'start failed', 'stop failed', 'start refused'].includes(e.event);
  item.className = bad ? 'bad' : e.event.replaceAll(' ', '-');
  item.append(node('time', clock(e.at_ms)), ' ', node('b', e.backend), ` ${text}`);
  item.firstChild.dateTime = new Date(e.at_ms).toISOString();
  $('log').prepend(item);
  while ($('log').children.length > LINES) $('log').lastChild.remove();
};

const happened = (e) => {
  if (e.event === 'gap') {
    $('log').prepend(node('li', 'Some of what happened before is not kept any more.'));
    return;
  }
  if (!e.backend) return;
  row(e.backend).history.happened(e);
  log(e);
  refresh();
};

const draw = () => {
  stale = false;
  const now = Date.now() + skew;
  const span = Number($('span').value);
  say($('division'), `a division is ${seconds(span / 4)}`);
  for (const one of rows.values()) one.draw(now, span);
};

const describe = () => {
  const now = Date.now() + skew;
  const span = Number($('span').value);
  for (const one of rows.values()) {
    one.parts.strip.setAttribute('aria-label', `The last ${seconds(span)}: ${one.history.told(now, span)}`);
  }
};

const begin = async () => {
  say($('where'), location.host);
  drawLegend();
  await refresh();
  describe();
  const events = new EventSource('/_events');
  events.addEventListener('open', () => link('live', 'live'));
  events.addEventListener('error', () => link('lost', 'no connection to the host, trying again'));
  events.addEventListener('message', ({ data, lastEventId }) => {
    if (lastEventId) runs(lastEventId.split('-')[0]);
    happened(JSON.parse(data));
  });
  // What was before is there to be read, and is not read out.
  setTimeout(() => { $('happened').setAttribute('aria-live', 'polite'); }, 3000);
  setInterval(() => { if (!document.hidden) refresh(); }, EVERY);
  const calm = matchMedia('(prefers-reduced-motion: reduce)');
  let drawn = 0;
  setInterval(() => {
    // As often as it moves by a pixel.
    const step = calm.matches ? CALM : Number($('span').value) * 1000 / $('backends').clientWidth;
    const due = stale || Date.now() - drawn >= step;
    // What is not known is not drawn.
    if (document.hidden || !due || $('link').dataset.link === 'lost') return;
    drawn = Date.now();
    draw();
  }, FRAME);
  setInterval(describe, 5000);
  $('span').addEventListener('change', () => { draw(); describe(); });
  new ResizeObserver(draw).observe($('backends'));
  document.addEventListener('visibilitychange', () => { if (!document.hidden) refresh(); });
};

begin();
