/**
 * Style and script of the timeline page. Plain text: they run in the reader's browser, not here.
 */

export const timelineStyle = `
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b2230; --soft: #5d6778; --rule: #d9dee7;
  --lane: #f3f5f8; --lane2: #eaedf2;
  --wait: #d98a00; --move: #0a8f8f; --bad: #d3202f; --panel: #f8f9fb; }
@media (prefers-color-scheme: dark) { :root { --paper: #12161d; --ink: #e6eaf1; --soft: #9aa5b7;
  --rule: #2d3542; --lane: #1a2029; --lane2: #202732;
  --wait: #ffb83d; --move: #34c9c9; --bad: #ff5a67; --panel: #181d26; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 24px; background: var(--paper); color: var(--ink); font: 14px/1.45 system-ui,
  -apple-system, 'Segoe UI', sans-serif; }
main { max-width: 1500px; margin: 0 auto; }
h1 { font-size: 22px; margin: 0 0 2px; overflow-wrap: anywhere; }
h2 { font-size: 15px; margin: 26px 0 8px; }
.facts { color: var(--soft); margin: 0 0 16px; overflow-wrap: anywhere; }
.facts b { color: var(--ink); font-weight: 600; }
.status-failed, .status-cancelled { color: var(--bad) !important; }
.bar { display: flex; flex-wrap: wrap; gap: 6px 16px; align-items: center; margin: 8px 0; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 14px; font-size: 12.5px; color: var(--soft); }
.legend span { display: inline-flex; align-items: center; gap: 5px; max-width: 260px; overflow: hidden;
  white-space: nowrap; text-overflow: ellipsis; }
.legend i { flex: none; width: 14px; height: 11px; border-radius: 2px; display: inline-block; }
.legend .wait { height: 4px; background: repeating-linear-gradient(90deg, var(--wait) 0 3px, transparent 3px 5px); }
.legend .move { height: 4px; background: var(--move); }
.legend .launch { background: repeating-linear-gradient(135deg, #0006 0 2px, transparent 2px 5px), #8894a8; }
.legend .bad { border: 2px solid var(--bad); background: linear-gradient(135deg, transparent 45%,
  var(--bad) 45% 55%, transparent 55%); }
.legend .idle { background: var(--lane2); border: 1px solid var(--rule); }
button { font: inherit; font-size: 12.5px; color: var(--ink); background: var(--panel);
  border: 1px solid var(--rule); border-radius: 6px; padding: 2px 10px; cursor: pointer; }
.band { border: 1px solid var(--rule); border-radius: 8px; margin: 10px 0; overflow: hidden; background: var(--panel); }
.band header { display: flex; gap: 14px; align-items: baseline; padding: 6px 12px; font-size: 13px;
  border-bottom: 1px solid var(--rule); }
.band header strong { font-size: 14px; text-transform: capitalize; }
.band header span { color: var(--soft); }
canvas { display: block; width: 100%; cursor: crosshair; touch-action: pan-y; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; min-width: 540px; }
th, td { padding: 4px 12px; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { font-weight: 600; color: var(--soft); font-size: 12.5px; }
th:first-child, td:first-child { text-align: left; max-width: 360px; overflow: hidden; text-overflow: ellipsis; }
td small { color: var(--soft); }
tfoot td { font-weight: 600; border-bottom: 0; border-top: 2px solid var(--rule); }
td i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 7px; }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg .soft { fill: var(--soft); }
#tip { position: fixed; z-index: 9; display: none; pointer-events: none; max-width: 420px; padding: 8px 11px;
  border-radius: 7px; font-size: 12.5px; white-space: pre-line;
  overflow-wrap: anywhere; background: var(--ink); color: var(--paper); box-shadow: 0 4px 18px #0005; }
@media print { button, #tip { display: none !important; } }
`

/**
 * Draws each band on one canvas, however many bars it has, and shares one time axis among them.
 * Data: { colours, types, end, currency, bands: [{ lanes: [[resource, lane]], bars: [[lane, type,
 * name, ready, moved, start, launched, finish, status, attempt, cost]] }] }.
 */
export const timelineScript = String.raw`
'use strict';
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const tip = document.getElementById('tip');
  const gutter = 132, axis = 22, least = 0.6;
  let view = { from: 0, to: data.end || 1 };
  let marked = null;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const seconds = (s) => {
    const sign = s < 0 ? '-' : '', a = Math.abs(s);
    const minutes = String(Math.floor(a % 3600 / 60)).padStart(2, '0');
    if (a >= 3600) return sign + Math.floor(a / 3600) + ' h ' + minutes + ' min';
    if (a >= 600) return sign + Math.floor(a / 60) + ' min ' + String(Math.round(a % 60)).padStart(2, '0') + ' s';
    const digits = a >= 100 ? 0 : a >= 10 ? 1 : a >= 0.1 || a === 0 ? 2 : 4;
    return sign + a.toFixed(digits) + ' s';
  };
  const bands = data.bands.map((band, index) => {
    const canvas = document.getElementById('band-' + index);
    const height = Math.min(24, Math.max(540 / Math.max(1, band.lanes.length), 0.25));
    const byLane = band.lanes.map(() => []);
    for (const bar of band.bars) byLane[bar[0]].push(bar);
    return { ...band, canvas, height, byLane };
  });

  const ticks = (width) => {
    const span = view.to - view.from;
    const rough = span / Math.max(2, width / 110);
    const steps = [1, 2, 5];
    let step = 10 ** Math.floor(Math.log10(rough));
    if (rough > 30) step = [60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200].find((s) => s >= rough) ||
      Math.ceil(rough / 86400) * 86400;
    else step = steps.map((s) => s * step).find((s) => s >= rough) || step * 10;
    const all = [];
    for (let t = Math.ceil(view.from / step) * step; t <= view.to && all.length < 200; t += step) all.push(t);
    return { step, all };
  };
  const label = (t, step) => (step >= 60 && t >= 3600 ? Math.floor(t / 3600) + ':' +
    String(Math.floor(t % 3600 / 60)).padStart(2, '0') + ' h'
    : step >= 60 ? Math.round(t / 60) + ' min' : Number(t.toFixed(Math.max(0, -Math.floor(Math.log10(step))))) + ' s');

  const draw = (band) => {
    const { canvas, height, byLane, lanes } = band;
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, tall = Math.ceil(axis + lanes.length * height + 4);
    canvas.style.height = tall + 'px';
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(tall * ratio);
    const c = canvas.getContext('2d');
    c.scale(ratio, ratio);
    const ink = css('--ink'), soft = css('--soft'), rule = css('--rule'), wait = css('--wait'),
      move = css('--move'), bad = css('--bad'), paper = css('--paper');
    const stripes = [css('--lane'), css('--lane2')];
    const scale = (width - gutter - 12) / (view.to - view.from);
    const x = (t) => gutter + (t - view.from) * scale;
    c.font = '11px system-ui, sans-serif';
    c.textBaseline = 'middle';

    let group = -1, before = null;
    lanes.forEach(([resource, lane], index) => {
      const top = axis + index * height;
      if (resource !== before) { group++; before = resource; }
      c.fillStyle = stripes[group % 2];
      c.fillRect(gutter, top, width - gutter, Math.max(height - (height > 6 ? 1 : 0), 0.25));
    });
    const { step, all } = ticks(width - gutter);
    for (const t of all) {
      c.fillStyle = rule;
      c.fillRect(x(t), axis - 4, 1, tall);
      c.fillStyle = soft;
      c.fillText(label(t, step), x(t) + 3, axis / 2 - 1);
    }

    c.save();
    c.beginPath();
    c.rect(gutter, 0, width - gutter, tall);
    c.clip();
    const strip = height >= 10 ? 3 : height >= 4 ? 1 : 0;
    byLane.forEach((bars, index) => {
      const top = axis + index * height;
      const thick = Math.max(height - (height > 6 ? 2 : 0), 0.5);
      // Waiting is a thin line below what the lane does meanwhile: a lane can be busy while its
      // next tasks wait.
      if (strip > 0) {
        for (const [, , , ready, moved, start] of bars) {
          if (start <= view.from || ready >= view.to) continue;
          c.fillStyle = wait;
          if (strip > 1) for (let at = Math.max(x(moved), gutter - 5); at < Math.min(x(start), width); at += 5)
            c.fillRect(at, top + thick - strip, Math.min(3, x(start) - at), strip);
          else c.fillRect(x(moved), top + thick - strip, x(start) - x(moved), strip);
          c.fillStyle = move;
          c.fillRect(x(ready), top + thick - strip, x(moved) - x(ready), strip);
        }
      }
      for (const bar of bars) {
        const [, type, name, , , start, launched, finish, status, attempt] = bar;
        if (finish < view.from || start > view.to) continue;
        const left = Math.max(x(start), gutter - 2), right = Math.min(x(finish), width + 2),
          wide = Math.max(right - left, least);
        const body = strip > 1 ? thick - strip - 1 : thick;
        const failed = status === 'failed' || status === 'cancelled';
        c.globalAlpha = marked !== null && marked !== name ? 0.35 : failed ? 0.45 : 1;
        c.fillStyle = data.colours[type];
        c.fillRect(left, top, wide, body);
        if (launched > start && x(launched) - left > 1) {
          c.save();
          c.beginPath();
          c.rect(left, top, Math.min(x(launched), right) - left, body);
          c.clip();
          c.strokeStyle = 'rgba(0,0,0,.45)';
          c.lineWidth = 2;
          c.beginPath();
          for (let at = left - body; at < Math.min(x(launched), right); at += 5) {
            c.moveTo(at, top + body);
            c.lineTo(at + body, top);
          }
          c.stroke();
          c.restore();
        }
        c.globalAlpha = 1;
        if (wide > 3 && height > 3) { c.fillStyle = paper; c.fillRect(left + wide - 1, top, 1, body); }
        if (failed) {
          c.strokeStyle = bad;
          c.fillStyle = bad;
          if (wide > 5 && height > 5) {
            c.lineWidth = 1.5;
            c.strokeRect(left + 0.75, top + 0.75, wide - 1.5, body - 1.5);
            c.beginPath();
            c.moveTo(left, top + body);
            c.lineTo(left + Math.min(wide, body), top);
            c.stroke();
          } else c.fillRect(left, top, Math.max(wide, 2), body);
        }
        if (status === 'running' && wide > 4) { c.fillStyle = ink; c.fillRect(right - 3, top, 2, body); }
        if (body >= 10 && wide > 34) {
          const text = attempt > 1 ? name + ' #' + attempt : name;
          const room = Math.floor((wide - 8) / 5.6);
          c.fillStyle = failed ? ink : '#fff';
          const shown = text.length > room ? text.slice(0, Math.max(1, room - 1)) + '…' : text;
          c.fillText(shown, left + 4, top + body / 2 + 0.5);
        }
      }
    });
    c.restore();

    c.fillStyle = paper;
    c.fillRect(0, 0, gutter - 4, tall);
    before = null;
    lanes.forEach(([resource, lane], index) => {
      const middle = axis + (index + 0.5) * height;
      const first = resource !== before;
      before = resource;
      if (height < 10 && !first) return;
      c.fillStyle = first ? ink : soft;
      const short = lane.startsWith(resource) ? lane.slice(resource.length).replace(/^[-\s]+/, '') : lane;
      const text = height < 10 ? resource : first ? resource + (short ? ' · ' + short : '') : '· ' + (short || lane);
      c.fillText(text.length > 22 ? '…' + text.slice(-21) : text, 6, Math.max(middle, axis + 6));
    });
  };
  const drawAll = () => bands.forEach(draw);
  let asked = false;
  const redraw = () => { if (!asked) { asked = true; requestAnimationFrame(() => { asked = false; drawAll(); }); } };

  const zoom = (factor, at) => {
    const middle = at === undefined ? (view.from + view.to) / 2 : at;
    const end = data.end || 1;
    let from = middle - (middle - view.from) * factor, to = middle + (view.to - middle) * factor;
    if (to - from < end / 1e5) return;
    from = Math.max(0, from);
    to = Math.min(end, to);
    view = to > from ? { from, to } : { from: 0, to: end };
    redraw();
  };
  const timeAt = (canvas, event) => {
    const box = canvas.getBoundingClientRect();
    return view.from + (event.clientX - box.left - gutter) / (box.width - gutter - 12) * (view.to - view.from);
  };
  const found = (band, event) => {
    const box = band.canvas.getBoundingClientRect();
    const lane = Math.floor((event.clientY - box.top - axis) / band.height);
    const t = timeAt(band.canvas, event), slack = (view.to - view.from) / (box.width - gutter) * 2;
    const bars = band.byLane[lane] || [];
    return bars.findLast((bar) => t >= bar[5] && t <= bar[7]) ||
      bars.find((bar) => t >= bar[5] - slack && t <= bar[7] + slack);
  };
  for (const band of bands) {
    let dragging = null;
    band.canvas.addEventListener('wheel', (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(band.canvas, event));
    }, { passive: false });
    band.canvas.addEventListener('pointerdown', (event) => {
      dragging = { x: event.clientX, view };
      band.canvas.setPointerCapture(event.pointerId);
    });
    band.canvas.addEventListener('pointerup', () => { dragging = null; });
    band.canvas.addEventListener('dblclick', () => { view = { from: 0, to: data.end || 1 }; redraw(); });
    band.canvas.addEventListener('pointermove', (event) => {
      if (dragging) {
        const per = (dragging.view.to - dragging.view.from) / (band.canvas.clientWidth - gutter - 12);
        const furthest = (data.end || 1) - dragging.view.to;
        const shift = Math.min(Math.max((dragging.x - event.clientX) * per, -dragging.view.from), furthest);
        view = { from: dragging.view.from + shift, to: dragging.view.to + shift };
        redraw();
        return;
      }
      const bar = found(band, event);
      const name = bar ? bar[2] : null;
      if (name !== marked) { marked = name; redraw(); }
      if (!bar) { tip.style.display = 'none'; return; }
      const [lane, type, , ready, moved, start, launched, finish, status, attempt, cost] = bar;
      const rows = [name + (attempt > 1 ? ' (attempt ' + attempt + ')' : ''),
        data.types[type] + ' on ' + band.lanes[lane].filter(Boolean).join(' · '),
        status, seconds(start) + ' → ' + seconds(finish), 'ran ' + seconds(finish - launched)];
      if (start > moved) rows.push('waited ' + seconds(start - moved));
      if (moved > ready) rows.push('data moved ' + seconds(moved - ready));
      if (launched > start) rows.push('launch ' + seconds(launched - start));
      if (cost !== null) rows.push('cost ' + Number(cost.toPrecision(4)) + (data.currency ? ' ' + data.currency : ''));
      tip.textContent = rows.join('\n');
      tip.style.display = 'block';
      tip.style.left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8) + 'px';
      tip.style.top = Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8) + 'px';
    });
    band.canvas.addEventListener('pointerleave', () => {
      tip.style.display = 'none';
      if (marked !== null) { marked = null; redraw(); }
    });
  }
  document.getElementById('closer').addEventListener('click', () => zoom(0.5));
  document.getElementById('wider').addEventListener('click', () => zoom(2));
  document.getElementById('all').addEventListener('click', () => { view = { from: 0, to: data.end || 1 }; redraw(); });
  window.addEventListener('resize', redraw);
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
  drawAll();
})();
`
