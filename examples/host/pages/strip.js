'use strict';
// The timelines: what each backend was at, drawn as shapes that differ in height and pattern, not in colour alone.

const SVG = 'http://www.w3.org/2000/svg';
// More of one backend are not kept.
const SEGMENTS = 3000;
const HEIGHT = 30;
const BASE = 25;
// Top and height of what stands on the base line.
const SHAPES = {
  waiting: [13, 12],
  starting: [9, 16],
  busy: [3, 22],
  idle: [19, 6],
  stopping: [13, 12],
};

const shape = (name, attributes, parent) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent.append(element);
  return element;
};

const drawSegment = (svg, kind, from, to) => {
  const [top, height] = SHAPES[kind];
  const width = Math.max(to - from, 1.5);
  const box = { x: from.toFixed(1), y: top, width: width.toFixed(1), height };
  shape('rect', { ...box, class: `seg ${kind}` }, svg);
  if (kind === 'starting' || kind === 'stopping') {
    // Stripes: rising for a start, falling for an end.
    const group = shape('g', { class: `seg ${kind} stripes` }, svg);
    for (let x = from; x < to; x += 5) {
      const end = Math.min(x + 4, to);
      const rise = height * ((end - x) / 4);
      const line = kind === 'starting'
        ? { x1: x, y1: BASE, x2: end, y2: BASE - rise }
        : { x1: x, y1: top, x2: end, y2: top + rise };
      shape('line', line, group);
    }
  }
};

const drawMark = (svg, kind, x) => {
  const d = kind === 'evicted'
    ? `M${x - 5} 1H${x + 5}L${x} 9Z`
    : `M${x - 4} 1L${x + 4} 9M${x + 4} 1L${x - 4} 9`;
  return shape('path', { d, class: `mark ${kind}` }, svg);
};

// What one backend was at, from the events.
class History {
  constructor() {
    this.segments = [];
    this.marks = [];
    this.now = null;
    this.generation = 0;
  }

  is(kind, at) {
    if (this.now?.kind === kind) return;
    if (this.now) this.now.to = at;
    this.now = kind ? { kind, from: at, to: null } : null;
    if (this.now) this.segments.push(this.now);
  }

  mark(kind, e, text) {
    this.marks.push({ kind, at: e.at_ms, text });
  }

  happened(e) {
    const late = e.generation != null && e.generation < this.generation;
    switch (e.event) {
      case 'starting': if (this.now?.kind !== 'busy' && this.now?.kind !== 'idle') this.is('starting', e.at_ms); break;
      case 'waiting for room': if (this.now?.kind === 'starting') this.is('waiting', e.at_ms); break;
      case 'ready':
        this.generation = e.generation;
        if (e.waited_ms > 0 && this.now?.kind === 'waiting') this.is('starting', e.at_ms - e.took_ms + e.waited_ms);
        this.is('idle', e.at_ms);
        break;
      case 'reloaded': this.generation = e.generation; this.is('idle', e.at_ms); break;
      case 'busy': this.is('busy', e.at_ms); break;
      case 'idle': if (this.now?.kind === 'busy') this.is('idle', e.at_ms); break;
      case 'used':
        // Between two glances: not longer than from one to the next.
        if (this.now?.kind === 'idle') {
          this.is('busy', Math.max(this.now.from, e.at_ms - 200));
          this.is('idle', e.at_ms);
        }
        break;
      case 'evicted':
        if (late) break;
        this.mark('evicted', e, reason(e));
        this.is('stopping', e.at_ms);
        break;
      case 'stopping': if (!late) this.is('stopping', e.at_ms); break;
      case 'died': this.mark('failed', e, 'died'); if (!late) this.is(null, e.at_ms); break;
      case 'start failed': this.mark('failed', e, 'did not start'); if (!late) this.is(null, e.at_ms); break;
      case 'start refused': case 'start dropped': if (this.now?.kind === 'waiting' || this.now?.kind === 'starting') this.is(null, e.at_ms); break;
      case 'stopped': case 'stop failed': case 'lost': if (!late) this.is(null, e.at_ms); break;
    }
    this.forget(e.at_ms - 3700_000);
  }

  // What the events have not told, since they are not kept for ever.
  agree(b, at) {
    const runs = b.state === 'running' || b.state === 'stopping' || b.state === 'starting';
    if (runs && !this.now) {
      const { shape: kind } = standing(b);
      this.is(kind, at - b.since_seconds * 1000);
    } else if (!runs && this.now) {
      this.is(null, at - b.since_seconds * 1000);
    }
    this.generation = Math.max(this.generation, b.state === 'running' ? b.generation : 0);
  }

  forget(before) {
    const old = ({ to }) => to && (to < before || this.segments.length > SEGMENTS);
    while (this.segments.length && old(this.segments[0])) this.segments.shift();
    while (this.marks.length && this.marks[0].at < before) this.marks.shift();
  }

  draw(svg, now, span) {
    const width = svg.clientWidth;
    if (!width) return;
    svg.replaceChildren();
    svg.setAttribute('viewBox', `0 0 ${width} ${HEIGHT}`);
    const x = (at) => width * (1 - (now - at) / (span * 1000));
    for (let i = 1; i < 4; i += 1) {
      shape('line', { class: 'tick', x1: (width * i) / 4, x2: (width * i) / 4, y1: 0, y2: BASE }, svg);
    }
    shape('line', { class: 'base', x1: 0, x2: width, y1: BASE + 0.5, y2: BASE + 0.5 }, svg);
    for (const segment of this.segments) {
      const to = x(segment.to ?? now);
      if (to > 0) drawSegment(svg, segment.kind, Math.max(0, x(segment.from)), to);
    }
    for (const { kind, at, text } of this.marks) {
      if (x(at) < 0) continue;
      const mark = drawMark(svg, kind, Math.min(width - 5, Math.max(5, x(at))));
      shape('title', {}, mark).textContent = `${clock(at)}: ${text}`;
    }
  }

  // The same for those who do not see it.
  told(now, span) {
    const from = now - span * 1000;
    const parts = [];
    for (const kind of ['busy', 'idle', 'starting', 'waiting', 'stopping']) {
      let sum = 0;
      for (const s of this.segments) {
        if (s.kind === kind) sum += Math.max(0, (s.to ?? now) - Math.max(from, s.from));
      }
      if (sum > 0) parts.push(`${{ busy: 'in use', waiting: 'waiting for room' }[kind] ?? kind} ${seconds(sum / 1000)}`);
    }
    const marks = (kind) => this.marks.filter((m) => m.kind === kind && m.at >= from).length;
    if (marks('evicted')) parts.push(`evicted ${count(marks('evicted'), 'time')}`);
    if (marks('failed')) parts.push(`failed ${count(marks('failed'), 'time')}`);
    return parts.length ? parts.join(', ') : 'stopped all the time';
  }
}

const drawLegend = () => {
  for (const svg of document.querySelectorAll('.sample')) {
    const kind = svg.dataset.shape;
    svg.setAttribute('viewBox', `0 0 22 ${HEIGHT}`);
    svg.setAttribute('aria-hidden', 'true');
    if (SHAPES[kind]) drawSegment(svg, kind, 1, 21);
    else drawMark(svg, kind, 11).setAttribute('transform', 'translate(0 11)');
  }
};
