"use strict";

// Plots on a canvas: lines, bands, points and heat maps, with a tip at the pointer and by the arrow keys.
// Everything that is drawn comes in as arrays and plain text; nothing here makes HTML of a text.

const plots = (() => {
  const MINUS = "\u2212";
  const MARGIN = { top: 10, right: 12, bottom: 34 };
  const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", "DejaVu Sans", sans-serif';
  const NEAR = 48; // pixels within which the pointer finds a point
  // A curve whose beginning lies more than this many times as far below the top as its end gets a bent axis.
  const LARGEST_LINEAR = 10;

  const all = new Set();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => all.forEach((plot) => plot.redraw()));

  function number(value, digits = 5) {
    if (value === null || value === undefined || Number.isNaN(value)) return "none";
    if (!Number.isFinite(value)) return value > 0 ? "∞" : `${MINUS}∞`;
    const short = Number(value.toPrecision(digits));
    const size = Math.abs(short);
    const words = size >= 1e7 || (size > 0 && size < 1e-4)
      ? short.toExponential().replace("e+", "e")
      : short.toLocaleString("en", { maximumSignificantDigits: digits });
    return words.replaceAll("-", MINUS);
  }

  function css(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  }

  // Where a centred word may stand so that it is not cut off on the right.
  function within(context, word, x, width) {
    return Math.min(x, width - context.measureText(word).width / 2 - 1);
  }

  // A canvas in a figure that fills its parent, redraws when its size or the colours change, and finds things.
  // `drawing` has draw(context, width, height), find(x, y), step(chosen, right, up), say(chosen), place(chosen).
  function frame(parent, { label, height, drawing, choose }) {
    const figure = document.createElement("figure");
    figure.className = "plot";
    const canvas = document.createElement("canvas");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", label);
    canvas.style.height = `${height}px`;
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.setAttribute("role", "status");
    tip.hidden = true;
    figure.append(canvas, tip);
    parent.append(figure);
    let chosen = null;
    let waiting = false;
    let tall = height;

    function paint() {
      waiting = false;
      const width = canvas.clientWidth;
      if (!width) return;
      const ratio = window.devicePixelRatio || 1;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(tall * ratio);
      const context = canvas.getContext("2d");
      context.scale(ratio, ratio);
      context.font = FONT;
      drawing.draw(context, width, tall);
      if (chosen !== null) {
        const place = drawing.place(chosen);
        if (!place) return hide();
        context.strokeStyle = css("text");
        context.lineWidth = 2;
        context.beginPath();
        if (place.width) context.rect(place.x, place.y, place.width, place.height);
        else context.arc(place.x, place.y, 5, 0, 7);
        context.stroke();
        show(place, width);
      }
    }
    function redraw() {
      if (!waiting) {
        waiting = true;
        requestAnimationFrame(paint);
      }
    }
    function show(place, width) {
      tip.textContent = drawing.say(chosen);
      tip.hidden = false;
      const left = place.x + (place.width || 0) / 2;
      const wide = tip.offsetWidth;
      tip.style.left = `${Math.max(0, Math.min(left - wide / 2, width - wide))}px`;
      const above = place.y - tip.offsetHeight - 12;
      tip.style.top = `${above > 0 ? above : place.y + (place.height || 0) + 12}px`;
    }
    function hide() {
      chosen = null;
      tip.hidden = true;
      redraw();
    }
    function at(event) {
      const box = canvas.getBoundingClientRect();
      return drawing.find(event.clientX - box.left, event.clientY - box.top);
    }
    function take(found) {
      if (found === null) return hide();
      chosen = found;
      redraw();
    }
    canvas.addEventListener("pointermove", (event) => take(at(event)));
    canvas.addEventListener("pointerdown", (event) => {
      const found = at(event);
      take(found);
      if (found !== null && choose) choose(found);
    });
    canvas.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse") hide();
    });
    canvas.addEventListener("blur", hide);
    canvas.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
      if (event.key in steps) {
        event.preventDefault();
        take(drawing.step(chosen, ...steps[event.key]));
      } else if (event.key === "Escape") {
        hide();
      } else if ((event.key === "Enter" || event.key === " ") && chosen !== null && choose) {
        event.preventDefault();
        choose(chosen);
      }
    });
    const observer = new ResizeObserver(redraw);
    observer.observe(canvas);
    const plot = {
      figure,
      canvas,
      redraw,
      label(text) {
        canvas.setAttribute("aria-label", text);
      },
      resize(size) {
        tall = size;
        canvas.style.height = `${size}px`;
        redraw();
      },
      remove() {
        observer.disconnect();
        all.delete(plot);
        figure.remove();
      },
    };
    all.add(plot);
    return plot;
  }

  // scales

  function evenTicks(low, high, count) {
    const rough = (high - low) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((digit) => digit * power).find((one) => one >= rough * 0.999);
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1) ticks.push(Number((k * step).toPrecision(12)));
    return ticks;
  }

  // Round numbers far enough apart on a bent axis to be read; the rounder, the earlier they are taken.
  function bentTicks(low, high, top, bend) {
    const start = bend(low);
    const length = bend(high) - start;
    const taken = new Map();
    const power = Math.ceil(Math.log10(Math.max(Math.abs(low), Math.abs(high))));
    for (let exponent = power; exponent > power - 8; exponent -= 1) {
      for (const digit of [5, 2, 1]) {
        const step = digit * 10 ** exponent;
        const first = Math.max(low, top - 12 * step);
        const last = Math.min(high, top + 12 * step);
        for (let k = Math.ceil(first / step); k <= Math.floor(last / step); k += 1) {
          const value = Number((k * step).toPrecision(12));
          const place = (bend(value) - start) / length;
          if ([...taken.keys()].every((other) => Math.abs(place - other) >= 0.1)) taken.set(place, value);
        }
        const places = [0, ...[...taken.keys()].sort((a, b) => a - b), 1];
        if (Math.max(...places.slice(1).map((place, k) => place - places[k])) <= 0.25) return [...taken.values()];
      }
    }
    return [...taken.values()];
  }

  function median(values) {
    const sorted = Array.from(values).filter(Number.isFinite).sort((a, b) => a - b);
    return sorted.length ? sorted[Math.floor(sorted.length / 2)] : NaN;
  }

  // Evenly spaced, or where a curve begins far below its end: evenly near the top, logarithmically far from it.
  function valueScale(low, high, end, bent, fromZero) {
    let span = high - low;
    if (!(span > 1e-9 * Math.max(Math.abs(low), Math.abs(high), 1e-300))) {
      const pad = Math.abs(high) * 0.1 || 1;
      return { bend: (y) => y, low: low - pad, high: high + pad, ticks: evenTicks(low - pad, high + pad, 4) };
    }
    const gap = Number.isFinite(end) ? high - end : span;
    if (!bent || span <= LARGEST_LINEAR * gap) {
      const bottom = fromZero && low >= 0 ? 0 : low - 0.06 * span;
      span = high - bottom;
      return { bend: (y) => y, low: bottom, high: high + 0.06 * span, ticks: evenTicks(bottom, high + 0.06 * span, 5) };
    }
    const unit = Math.max(gap, 1e-3 * span);
    const bend = (y) => Math.asinh((y - high) / unit);
    const unbend = (z) => high + unit * Math.sinh(z);
    const depth = -bend(low);
    const bottom = unbend(-1.05 * depth);
    const ceiling = unbend(0.08 * depth);
    return { bend, low: bottom, high: ceiling, ticks: bentTicks(bottom, ceiling, high, bend) };
  }

  // Series: {name, kind: line | band | points | failed | level, x, y, low, high, colour, dash, say(i)}; those of kind
  // failed have no y and stand at the bottom; the ends of those that are main decide whether the axis is bent.
  function linePlot(parent, { label, height = 300, xLabel, yLabel, bent = false, fromZero = false, fromX = null, whole = true, legend = true }) {
    let series = [];
    const hidden = new Set();
    let view = null;
    const list = document.createElement("ul");
    list.className = "legend";

    const seen = () => series.filter((one) => !hidden.has(one.name));

    function limits() {
      let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
      for (const one of seen()) {
        for (const x of one.x || []) {
          if (x < left) left = x;
          if (x > right) right = x;
        }
        for (const values of [one.y, one.low, one.high]) {
          for (const y of values || []) {
            if (!Number.isFinite(y)) continue;
            if (y < low) low = y;
            if (y > high) high = y;
          }
        }
      }
      if (fromX !== null) left = Math.min(fromX, left);
      if (!(right > left)) right = left + 1;
      return [left, right, low, high];
    }

    function draw(context, width, tall) {
      view = null;
      const [left, right, low, high] = limits();
      context.fillStyle = css("quiet");
      context.textBaseline = "middle";
      if (!Number.isFinite(left) || !Number.isFinite(low)) {
        context.textAlign = "center";
        context.fillText("nothing to draw yet", width / 2, tall / 2);
        return;
      }
      const ends = seen().filter((one) => one.main).map((one) => median(one.y.slice(-Math.max(1, Math.floor(one.y.length / 5)))));
      const scale = valueScale(low, high, median(ends), bent, fromZero);
      const words = scale.ticks.map((tick) => number(tick));
      const margin = Math.ceil(Math.max(...words.map((word) => context.measureText(word).width), 10)) + 28;
      const inner = { x: margin, y: MARGIN.top, width: width - margin - MARGIN.right, height: tall - MARGIN.top - MARGIN.bottom };
      const bottom = scale.bend(scale.low);
      const length = scale.bend(scale.high) - bottom;
      const toX = (x) => inner.x + ((x - left) / (right - left)) * inner.width;
      const toY = (y) => inner.y + inner.height * (1 - (scale.bend(y) - bottom) / length);
      view = { inner, toX, toY };

      context.strokeStyle = css("grid");
      context.lineWidth = 1;
      context.textAlign = "right";
      scale.ticks.forEach((tick, place) => {
        const y = Math.round(toY(tick)) + 0.5;
        context.beginPath();
        context.moveTo(inner.x, y);
        context.lineTo(inner.x + inner.width, y);
        context.stroke();
        context.fillText(words[place], inner.x - 6, y);
      });
      context.textAlign = "center";
      for (const tick of evenTicks(left, right, Math.max(2, inner.width / 70))) {
        if (whole && !Number.isInteger(tick)) continue;
        context.fillText(number(tick), within(context, number(tick), toX(tick), width), tall - MARGIN.bottom + 11);
      }
      context.fillText(xLabel, inner.x + inner.width / 2, tall - 7);
      context.save();
      context.translate(8, inner.y + inner.height / 2);
      context.rotate(-Math.PI / 2);
      context.fillText(yLabel, 0, 0);
      context.restore();

      context.save();
      context.beginPath();
      context.rect(inner.x - 4, inner.y - 4, inner.width + 8, inner.height + 8);
      context.clip();
      for (const one of seen()) drawSeries(context, one, view);
      context.restore();
    }

    function drawSeries(context, one, { inner, toX, toY }) {
      context.strokeStyle = context.fillStyle = css(one.colour);
      if (one.kind === "points") {
        const size = one.x.length > 3000 ? 2 : one.x.length > 600 ? 3 : 4;
        context.globalAlpha = one.x.length > 3000 ? 0.35 : 0.55;
        for (let k = 0; k < one.x.length; k += 1) context.fillRect(toX(one.x[k]) - size / 2, toY(one.y[k]) - size / 2, size, size);
        context.globalAlpha = 1;
      } else if (one.kind === "failed") {
        context.lineWidth = 1.5;
        const y = inner.y + inner.height - 5;
        context.beginPath();
        for (const value of one.x) {
          const x = toX(value);
          context.moveTo(x - 3.5, y - 3.5);
          context.lineTo(x + 3.5, y + 3.5);
          context.moveTo(x - 3.5, y + 3.5);
          context.lineTo(x + 3.5, y - 3.5);
        }
        context.stroke();
      } else if (one.kind === "band") {
        context.globalAlpha = 0.18;
        context.beginPath();
        for (let k = 0; k < one.x.length; k += 1) context.lineTo(toX(one.x[k]), toY(one.high[k]));
        for (let k = one.x.length - 1; k >= 0; k -= 1) context.lineTo(toX(one.x[k]), toY(one.low[k]));
        context.fill();
        context.globalAlpha = 1;
      } else {
        context.lineWidth = 2;
        context.lineJoin = "round";
        context.setLineDash(one.dash || []);
        context.beginPath();
        let pen = false;
        for (let k = 0; k < one.x.length; k += 1) {
          if (!Number.isFinite(one.y[k])) {
            pen = false;
            continue;
          }
          if (pen) context.lineTo(toX(one.x[k]), toY(one.y[k]));
          else context.moveTo(toX(one.x[k]), toY(one.y[k]));
          pen = true;
        }
        context.stroke();
        context.setLineDash([]);
        if (one.x.length === 1) context.fillRect(toX(one.x[0]) - 3, toY(one.y[0]) - 3, 6, 6);
      }
    }

    const ready = (one) => one.kind !== "band" && one.kind !== "level" && one.x.length > 0;

    function place({ name, k }) {
      const one = seen().find((some) => some.name === name);
      if (!view || !one || k >= one.x.length) return null;
      if (one.kind === "failed") return { x: view.toX(one.x[k]), y: view.inner.y + view.inner.height - 5 };
      return Number.isFinite(one.y[k]) ? { x: view.toX(one.x[k]), y: view.toY(one.y[k]) } : null;
    }

    const drawing = {
      draw,
      place,
      find(x, y) {
        if (!view) return null;
        let best = null;
        let least = NEAR * NEAR;
        for (const one of seen().filter(ready)) {
          // a line is easier to mean than one of many points
          const handicap = one.kind === "points" ? 36 : 0;
          for (let k = 0; k < one.x.length; k += 1) {
            const across = view.toX(one.x[k]) - x;
            if (across * across > least) continue;
            const spot = place({ name: one.name, k });
            if (!spot) continue;
            const distance = across * across + (spot.y - y) ** 2 + handicap;
            if (distance < least) {
              least = distance;
              best = { name: one.name, k };
            }
          }
        }
        return best;
      },
      step(chosen, right, up) {
        const some = seen().filter(ready);
        if (!some.length) return null;
        if (!chosen) return { name: some[0].name, k: some[0].x.length - 1 };
        const which = Math.max(0, some.findIndex((one) => one.name === chosen.name));
        if (!up) return { name: some[which].name, k: Math.max(0, Math.min(some[which].x.length - 1, chosen.k + right)) };
        const other = some[(which - up + some.length) % some.length];
        const x = some[which].x[chosen.k];
        let k = 0;
        for (let place = 1; place < other.x.length; place += 1) if (Math.abs(other.x[place] - x) < Math.abs(other.x[k] - x)) k = place;
        return { name: other.name, k };
      },
      say({ name, k }) {
        const one = series.find((some) => some.name === name);
        return one.say ? one.say(k) : `${name}\n${xLabel} ${number(one.x[k])}\n${yLabel} ${number(one.y[k])}`;
      },
    };
    const plot = frame(parent, { label, height, drawing });
    if (legend) plot.figure.append(list);

    function showLegend() {
      const wanted = series.filter((one) => one.kind !== "band" && one.kind !== "level");
      const names = wanted.map((one) => one.name).join("\n");
      if (list.dataset.names === names) return;
      list.dataset.names = names;
      list.replaceChildren(
        ...wanted.map((one) => {
          const button = document.createElement("button");
          button.type = "button";
          button.setAttribute("aria-pressed", String(!hidden.has(one.name)));
          const sign = document.createElement("i");
          if (one.kind !== "line") sign.className = "dot";
          sign.style.background = `var(--${one.colour})`;
          button.append(sign, one.name);
          button.addEventListener("click", () => {
            // a band goes with its line
            for (const other of series) {
              if (other.name !== one.name && other.of !== one.name) continue;
              if (hidden.has(other.name)) hidden.delete(other.name);
              else hidden.add(other.name);
            }
            button.setAttribute("aria-pressed", String(!hidden.has(one.name)));
            plot.redraw();
          });
          const item = document.createElement("li");
          item.append(button);
          return item;
        }),
      );
    }

    return {
      ...plot,
      show(data) {
        series = data.filter((one) => one.x.length);
        if (legend) showLegend();
        plot.redraw();
      },
    };
  }

  // colours

  function parts(colour) {
    const probe = document.createElement("canvas").getContext("2d");
    probe.fillStyle = colour;
    const hex = probe.fillStyle;
    return [1, 3, 5].map((place) => Number.parseInt(hex.slice(place, place + 2), 16));
  }

  // Cells (rows x columns): value(r, c) from 0 to 1 or NaN, marked(r, c) true or false.
  function heatMap(parent, { label, rowHeight = 15, choose }) {
    let map = null;
    let view = null;

    function draw(context, width, tall) {
      view = null;
      context.textBaseline = "middle";
      context.fillStyle = css("quiet");
      if (!map || !map.rows || !map.columns) {
        context.textAlign = "center";
        context.fillText("nothing to draw yet", width / 2, tall / 2);
        return;
      }
      const names = Array.from({ length: map.rows }, (_, row) => map.name(row));
      const most = Math.max(40, Math.min(width * 0.32, Math.max(...names.map((name) => context.measureText(name).width))));
      const inner = { x: Math.ceil(most) + 8, y: 2, width: width - Math.ceil(most) - 8 - MARGIN.right, height: map.rows * rowHeight };
      view = { inner, cell: inner.width / map.columns };

      const [none, selected, other] = ["heat-none", "heat-selected", "heat-other"].map((name) => parts(css(name)));
      const image = new ImageData(map.columns, map.rows);
      for (let row = 0; row < map.rows; row += 1) {
        for (let column = 0; column < map.columns; column += 1) {
          const value = map.value(row, column);
          const end = map.marked(row, column) ? selected : other;
          const place = 4 * (row * map.columns + column);
          for (let k = 0; k < 3; k += 1) image.data[place + k] = Number.isFinite(value) ? none[k] + (end[k] - none[k]) * value : none[k];
          image.data[place + 3] = 255;
        }
      }
      const small = document.createElement("canvas");
      small.width = map.columns;
      small.height = map.rows;
      small.getContext("2d").putImageData(image, 0, 0);
      context.imageSmoothingEnabled = false;
      context.drawImage(small, inner.x, inner.y, inner.width, inner.height);
      if (view.cell >= 9 && rowHeight >= 9) {
        // a dot, for those who do not tell the colours apart
        for (let row = 0; row < map.rows; row += 1) {
          for (let column = 0; column < map.columns; column += 1) {
            if (!map.marked(row, column)) continue;
            context.fillStyle = map.value(row, column) > 0.5 ? css("heat-none") : css("heat-selected");
            context.beginPath();
            context.arc(inner.x + (column + 0.5) * view.cell, inner.y + (row + 0.5) * rowHeight, 1.7, 0, 7);
            context.fill();
          }
        }
      }
      context.textAlign = "right";
      const every = Math.ceil(13 / rowHeight);
      names.forEach((name, row) => {
        if (row % every) return;
        context.fillStyle = row === map.current ? css("accent") : css("text");
        let word = name;
        while (word.length > 2 && context.measureText(word).width > most) word = `${word.slice(0, -2)}…`;
        context.fillText(word, inner.x - 6, inner.y + (row + 0.5) * rowHeight);
      });
      context.fillStyle = css("quiet");
      context.textAlign = "center";
      const shown = Math.max(1, Math.ceil(map.columns / Math.max(2, Math.floor(inner.width / 80))));
      for (let column = shown - 1; column < map.columns; column += shown) {
        const x = inner.x + (column + 0.5) * view.cell;
        context.fillText(map.columnName(column), within(context, map.columnName(column), x, width), inner.y + inner.height + 11);
      }
      context.fillText(map.xLabel, inner.x + inner.width / 2, inner.y + inner.height + 26);
    }

    const inside = (row, column) => map && row >= 0 && column >= 0 && row < map.rows && column < map.columns;
    const drawing = {
      draw,
      find(x, y) {
        if (!view) return null;
        const row = Math.floor((y - view.inner.y) / rowHeight);
        // on its name, a row stands for its latest cell
        const column = x < view.inner.x ? map.columns - 1 : Math.floor((x - view.inner.x) / view.cell);
        return inside(row, column) ? { row, column } : null;
      },
      step(chosen, right, up) {
        if (!map || !map.rows || !map.columns) return null;
        if (!chosen) return { row: 0, column: map.columns - 1 };
        return {
          row: Math.max(0, Math.min(map.rows - 1, chosen.row - up)),
          column: Math.max(0, Math.min(map.columns - 1, chosen.column + right)),
        };
      },
      say: ({ row, column }) => map.say(row, column),
      place({ row, column }) {
        if (!view || !inside(row, column)) return null;
        return { x: view.inner.x + column * view.cell, y: view.inner.y + row * rowHeight, width: view.cell, height: rowHeight };
      },
    };
    const plot = frame(parent, { label, height: 80, drawing, choose: choose && (({ row, column }) => choose(row, column)) });
    return {
      ...plot,
      show(data) {
        map = data;
        plot.resize(2 + map.rows * rowHeight + 36);
      },
    };
  }

  return { linePlot, heatMap, number };
})();
