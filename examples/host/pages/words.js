'use strict';
// What the host's numbers and events are in words. Nothing here touches the page.

const seconds = (s) => {
  if (s == null) return '–';
  if (s < 0.0995) return `${Math.round(s * 1000)} ms`;
  if (s < 9.95) return `${s.toFixed(1)} s`;
  if (s < 99.5) return `${Math.round(s)} s`;
  if (s < 5970) return `${Math.round(s / 60)} min`;
  if (s < 172000) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} days`;
};

// As seconds(), for what grows while one looks at it.
const age = (s) => (s < 99.5 ? `${Math.max(0, Math.floor(s))} s` : seconds(s));

const bytes = (n) => {
  if (n < 1024 * 1024) return `${Math.round(n / 1024)} KiB`;
  if (n < 1024 * 1024 * 1024) return `${(n / 1024 / 1024).toFixed(n < 10485760 ? 1 : 0)} MiB`;
  return `${(n / 1024 / 1024 / 1024).toFixed(1)} GiB`;
};

const count = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;

const median = (numbers) => {
  const sorted = [...numbers].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
};

const clock = (at) => new Date(at).toLocaleTimeString([], { hour12: false });

const firstLine = (text) => String(text ?? '').split('\n')[0];

// What a child said last, without the words that the host puts around it.
const lastLines = (detail) => {
  const [, lines] = /^its last lines of output:\n([^]*)$/.exec(detail ?? '') ?? [null, detail ?? ''];
  return lines.replace(/^ {2}/gm, '');
};

// What a backend is at, more finely than its state: with its shape, and in words.
const standing = (b) => {
  switch (b.state) {
    case 'running':
      return b.in_flight > 0
        ? { shape: 'busy', word: `running, ${count(b.in_flight, 'call')} in flight` }
        : { shape: 'idle', word: `running, idle for ${age(Math.min(b.last_use_seconds ?? b.since_seconds, b.since_seconds))}` };
    case 'starting':
      return b.queued
        ? { shape: 'waiting', word: `waits for room, place ${b.queued.place}, for ${age(b.queued.waited_seconds)}` }
        : { shape: 'starting', word: `starting for ${age(b.since_seconds)}` };
    case 'stopping':
      return { shape: 'stopping', word: b.in_flight > 0 ? `stopping after ${count(b.in_flight, 'call')}` : 'stopping' };
    case 'backing_off':
      return { shape: 'backing_off', word: 'failed, backing off' };
    case 'unloaded':
      return { shape: 'unloaded', word: 'unloaded: stays down' };
    case 'shut_down':
      return { shape: 'unloaded', word: 'shut down' };
    default:
      return { shape: b.failing ? 'backing_off' : 'stopped', word: whyStopped(b) };
  }
};

const whyStopped = (b) => {
  const end = b.last_end;
  if (b.failing && end?.event !== 'died') return `did not start ${age(b.since_seconds)} ago`;
  if (b.starts === 0) return 'never started';
  const since = `stopped ${age(b.since_seconds)} ago`;
  switch (end?.event) {
    case 'evicted': return `${since}: ${past(end)}`;
    case 'died': return `${since}: it died`;
    case 'stopping': return `${since}, as it was told`;
    default: return since;
  }
};

const past = (e) => {
  switch (e.reason) {
    case 'idle': return 'nobody used it';
    case 'room': return `${e.room_for ?? 'another'} needed its room`;
    case 'yield': return `${e.room_for ?? 'another'} had waited for its room`;
    case 'over': return 'the host was over its limit';
    default: return e.reason;
  }
};

const ms = (n) => seconds(n / 1000);

// An event as a sentence whose subject is the backend; none for those that are not worth one.
const sentence = (e) => {
  switch (e.event) {
    case 'starting': return 'is wanted';
    case 'waiting for room': return `waits for room${e.place ? `, place ${e.place}` : ''}`;
    case 'ready': return `runs, after ${ms(e.took_ms)}${e.waited_ms > 0 ? `, of which it waited ${ms(e.waited_ms)} for room` : ''}`;
    case 'start failed': return `did not start: ${cause(e)}`;
    case 'start dropped': return e.reason === 'abandoned' ? 'is not started: nobody waits any more' : 'is not started, as it was told';
    case 'backing off': return `is not tried again for ${ms(e.for_ms)}`;
    case 'lost': return `was lost: ${cause(e)}`;
    case 'start refused': return `was not started: ${cause(e)}`;
    case 'evicted': return `is stopped: ${reason(e)}`;
    case 'died': return `died after ${ms(e.lived_ms)}: ${cause(e)}`;
    case 'stopping': return 'was told to stop';
    case 'stopped': return e.way === 'killed' ? `had to be killed, after ${ms(e.took_ms)}` : `is gone, after ${ms(e.took_ms)}`;
    case 'stop failed': return `has not stopped: ${cause(e)}`;
    case 'reloaded': return 'was reloaded: a new instance took over';
    case 'ordered': return `was given an order from this page: ${e.order}`;
    default: return null;
  }
};

const cause = (e) => {
  const text = firstLine(e.error);
  const prefix = `backend "${e.backend}": `;
  return text.startsWith(prefix) ? text.slice(prefix.length) : text;
};

const reason = (e) => {
  const idle = e.idle_ms == null ? '' : ` for ${ms(e.idle_ms)}`;
  switch (e.reason) {
    case 'idle': return `nobody used it${idle}`;
    case 'room': return `${e.room_for ?? 'another'} needs its room, and it was idle${idle}`;
    case 'yield': return `it yields its room to ${e.room_for ?? 'another'}`;
    case 'over': return 'the host is over its limit';
    default: return e.reason;
  }
};
