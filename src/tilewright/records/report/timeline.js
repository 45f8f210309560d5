// Enlarges a part of the time: rewrites the paths that the page came with. No request leaves this page.
(() => {
  "use strict";
  document.documentElement.classList.add("js");
  const WIDTH = 1000, ROW = 24, GAP = 3, KINDS = ["a", "b", "c", "d", "x"];
  const [START, LONG, AT_ROW, KIND, NAME, AMOUNT, PIECES] = [0, 1, 2, 3, 4, 5, 6]; // of a bar
  const LEAST = 5; // µs across the whole width at the highest zoom
  const tip = document.getElementById("tip");
  const box = (x, y, width, height) => `M${x.toFixed(2)} ${y}h${width.toFixed(2)}v${height}h${(-width).toFixed(2)}z`;

  function digits(value) {
    const places = value ? Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)))) : 0;
    return value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
  }
  function duration(us) {
    return !us ? "0 s" : us < 100 ? `${digits(us)} µs` : us < 1e6 ? `${digits(us / 1e3)} ms` : `${digits(us / 1e6)} s`;
  }
  function amount(value, unit) {
    const [one, many] = unit === "bytes" ? ["B", ["kB", "MB", "GB", "TB"]] : ["operations", ["thousand", "million", "billion", "trillion"]];
    let power = -1;
    while (value >= 1000 && power < 3) { value /= 1000; power += 1; }
    if (power < 0) return `${value} ${one}`;
    return unit === "bytes" ? `${digits(value)} ${many[power]}` : `${digits(value)} ${many[power]} operations`;
  }

  function boxes(track, from, to, pixels) {
    const scale = WIDTH / (to - from), pixel = WIDTH / pixels, open = new Map(), paths = {}, words = [];
    const close = (key, kind, row) => {
      const [x, end] = open.get(key);
      paths[kind] = (paths[kind] ?? "") + box(x, row * (ROW + GAP), end - x, ROW);
    };
    for (const bar of track.bars) {
      if (bar[START] > to || bar[START] + bar[LONG] < from) continue;
      const x = Math.max(-5, (bar[START] - from) * scale);
      let end = Math.min(WIDTH + 5, Math.max((bar[START] + bar[LONG] - from) * scale, x + pixel / 2));
      if ((end - x) / pixel > 4) end -= pixel; // a gap between the steps of one tile
      if ((end - x) / pixel > 7 * bar[NAME].length) words.push([bar, Math.max(0, x), Math.min(WIDTH, end)]);
      const kind = KINDS[bar[KIND]], key = kind + bar[AT_ROW], last = open.get(key);
      if (last && x - last[1] < pixel / 4) { last[1] = Math.max(last[1], end); continue; }
      if (last) close(key, kind, bar[AT_ROW]);
      open.set(key, [x, end]);
    }
    for (const key of open.keys()) close(key, key[0], Number(key.slice(1)));
    return [paths, words];
  }

  function areas(track, from, to, total) {
    const kinds = Object.keys(track.density), bins = track.density[kinds[0]].length, columns = 500, paths = {};
    let below = new Array(columns).fill(0);
    const edge = (column) => (from + (to - from) * column / columns) / total * bins;
    for (const kind of kinds) {
      const above = below.map((low, column) => {
        const first = Math.min(bins - 1, Math.floor(edge(column))), last = Math.max(first + 1, Math.min(bins, Math.round(edge(column + 1))));
        let sum = 0;
        for (let bin = first; bin < last; bin += 1) sum += track.density[kind][bin];
        return low + sum / (last - first);
      });
      const y = (value) => (track.height * (1 - value / (track.peak || 1))).toFixed(1), wide = WIDTH / columns;
      const back = [...below].reverse().map((value) => `V${y(value)}h-${wide}`).join("");
      paths[kind] = `M0 ${y(above[0])}` + above.map((value) => `V${y(value)}h${wide}`).join("") + back + "z";
      below = above;
    }
    return paths;
  }

  function ticks(from, to, most) {
    const power = 10 ** Math.floor(Math.log10((to - from) / 1e6));
    const step = power * ([0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5].find((each) => (to - from) / 1e6 / (each * power) <= most) ?? 5);
    const places = Math.max(0, -Math.floor(Math.log10(step) + 1e-9)), found = [];
    for (let x = Math.ceil(from / 1e6 / step - 1e-9); x * step * 1e6 <= to; x += 1) {
      found.push([(x * step * 1e6 - from) / (to - from), x ? `${(x * step).toFixed(places)} s` : "0 s"]);
    }
    return found;
  }

  function timeline(article, { total, places }) {
    const figure = article.querySelector(".figure");
    if (!figure || !total) return;
    const shown = figure.querySelector(".shown"), ruler = figure.querySelector(".ruler"), part = figure.querySelector(".window i");
    const rooms = [...figure.querySelectorAll(".place")].flatMap((place, p) =>
      [...place.querySelectorAll(".room")].map((room, l) => ({ room, track: places[p].tracks[l], gaps: places[p].gaps })));
    let from = 0, to = total;

    function element(room, kind, left, width) {
      const made = document.createElement("div");
      made.className = kind;
      made.style.left = `${left}%`;
      made.style.width = `${width}%`;
      room.append(made);
      return made;
    }
    function draw() {
      hide();
      for (const { room, track, gaps } of rooms) {
        const pixels = room.clientWidth || 1;
        const [paths, words] = track.bars ? boxes(track, from, to, pixels) : [areas(track, from, to, total), []];
        const scale = WIDTH / (to - from);
        paths.idle = gaps.filter(([start, end]) => end > from && start < to && (end - start) * scale > 0.3)
          .map(([start, end]) => box(Math.max(-5, (start - from) * scale), 0, Math.min(2 * WIDTH, (end - Math.max(start, from)) * scale), track.height)).join("");
        for (const path of room.querySelectorAll("path")) path.setAttribute("d", paths[path.classList[0]] ?? "");
        for (const old of room.querySelectorAll(".word")) old.remove();
        for (const [bar, x, end] of words) {
          if ((end - x) / WIDTH * pixels < 7 * bar[NAME].length) continue;
          const word = element(room, "word", x / 10, (end - x) / 10);
          word.style.top = `${bar[AT_ROW] * (ROW + GAP)}px`;
          word.textContent = bar[NAME];
        }
      }
      ruler.replaceChildren(...ticks(from, to, Math.max(2, ruler.clientWidth / 90)).map(([share, words]) => {
        const tick = document.createElement("span");
        tick.style.left = `${100 * share}%`;
        tick.textContent = words;
        return tick;
      }));
      part.style.left = `${100 * from / total}%`;
      part.style.width = `${100 * (to - from) / total}%`;
      const whole = from <= 0 && to >= total;
      part.parentElement.classList.toggle("whole", whole);
      shown.textContent = whole ? "" : `${duration(to - from)} from ${duration(from)} on`;
      for (const button of figure.querySelectorAll(".controls button")) button.disabled = whole && button.dataset.do !== "in";
    }
    function show(start, end) {
      const long = Math.min(total, Math.max(LEAST, end - start));
      from = Math.max(0, Math.min(total - long, start));
      to = from + long;
      draw(); // browsers send moves of pointer and wheel once a frame
    }
    function zoom(factor, share = 0.5) {
      const at = from + share * (to - from), long = Math.min(total, Math.max(LEAST, (to - from) * factor));
      show(at - share * long, at + (1 - share) * long);
    }
    const pan = (share) => show(from + share * (to - from), to + share * (to - from));
    const doing = { in: () => zoom(0.5), out: () => zoom(2), left: () => pan(-0.5), right: () => pan(0.5), all: () => show(0, total) };
    const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all" };
    for (const button of figure.querySelectorAll("[data-do]")) button.addEventListener("click", doing[button.dataset.do]);
    figure.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
      event.preventDefault();
      doing[keys[event.key]]();
    });

    // ---- the pointer
    let here = null;
    function hide() {
      tip.hidden = true;
      here?.remove();
      here = null;
    }
    const share = (room, event) => {
      const edges = room.getBoundingClientRect();
      return (event.clientX - edges.left) / edges.width;
    };
    function described(track, at, row, near) {
      if (!track.bars) {
        const bin = (list) => list[Math.min(list.length - 1, Math.floor(at / total * list.length))];
        const kinds = Object.entries(track.density).filter(([, list]) => bin(list) >= 0.05);
        const of = kinds.map(([kind, list]) => `${digits(bin(list))} of ${({ a: "A", b: "B", c: "C", d: "C" })[kind] ?? "others"}`);
        return { title: track.name, lines: [of.length ? `threads at work: ${of.join(", ")}` : "no thread at work", `at ${duration(at)}`] };
      }
      const distance = (bar) => Math.max(bar[START] - at, at - bar[START] - bar[LONG], 0);
      let bar = null;
      for (const each of track.bars) if (each[AT_ROW] === row && (!bar || distance(each) < distance(bar))) bar = each;
      if (!bar || distance(bar) > near) return null;
      const work = track.amounts[bar[AMOUNT]], rate = work && bar[LONG] ? work / bar[LONG] / 1e3 : 0;
      const lines = [`${duration(bar[LONG])}, from ${duration(bar[START])} on`];
      if (work) lines.push(`${amount(work, track.unit)}${rate ? `, ${digits(rate)} ${track.unit === "bytes" ? "GB/s" : "GFLOPS"}` : ""}`);
      if (bar[PIECES] > 1) lines.push(`${bar[PIECES]} pieces, too short to be drawn separately`);
      return { title: bar[NAME], lines, bar };
    }
    function point(room, track, event) {
      hide();
      const at = from + share(room, event) * (to - from), edges = room.getBoundingClientRect();
      const row = Math.min(Math.floor((event.clientY - edges.top) / (ROW + GAP)), Math.max(0, Math.round((track.height + GAP) / (ROW + GAP)) - 1));
      const found = described(track, at, row, 3 * (to - from) / edges.width);
      if (!found) return;
      const title = document.createElement("b");
      title.textContent = found.title;
      tip.replaceChildren(title, ...found.lines.flatMap((line, i) => i ? [document.createElement("br"), line] : [line]));
      tip.hidden = false;
      tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
      tip.style.top = `${edges.bottom + 8 + tip.offsetHeight > innerHeight ? edges.top - tip.offsetHeight - 8 : edges.bottom + 8}px`;
      if (found.bar) {
        const scale = 100 / (to - from), left = Math.max(0, (found.bar[START] - from) * scale);
        here = element(room, "here", left, Math.min(100, (found.bar[START] + found.bar[LONG] - from) * scale) - left);
        here.style.top = `${found.bar[AT_ROW] * (ROW + GAP)}px`;
        here.style.height = `${ROW}px`;
      }
    }
    for (const { room, track } of rooms) {
      let began = null, chosen = null, last = 0;
      room.addEventListener("pointerdown", (event) => {
        if (event.button) return;
        [began, last] = [share(room, event), event.clientX];
        try { room.setPointerCapture(event.pointerId); } catch { /* the pointer may be gone already */ }
        if (event.pointerType !== "mouse") point(room, track, event);
      });
      room.addEventListener("pointermove", (event) => {
        if (began === null) { point(room, track, event); return; }
        if (event.pointerType !== "mouse") { // a finger pans
          pan((last - event.clientX) / room.clientWidth);
          last = event.clientX;
          return;
        }
        const [x, y] = [began, share(room, event)].sort((p, q) => p - q).map((p) => Math.min(1, Math.max(0, p)));
        hide();
        chosen?.remove();
        chosen = element(room, "chosen", 100 * x, 100 * (y - x));
      });
      const end = (event) => {
        chosen?.remove();
        chosen = null;
        if (began === null) return;
        const [x, y] = [began, share(room, event)].sort((p, q) => p - q);
        began = null;
        if (event.type === "pointerup" && event.pointerType === "mouse" && (y - x) * room.clientWidth > 6) {
          show(from + Math.max(0, x) * (to - from), from + Math.min(1, y) * (to - from));
        }
      };
      room.addEventListener("pointerup", end);
      room.addEventListener("pointercancel", end);
      room.addEventListener("pointerleave", hide);
      room.addEventListener("dblclick", doing.all);
      room.addEventListener("wheel", (event) => {
        const [x, y] = [event.deltaX, event.deltaY].map((delta) => event.deltaMode ? 16 * delta : delta); // lines of 16 pixels
        if (event.ctrlKey) zoom(1.0015 ** y, share(room, event));
        else if (event.shiftKey || Math.abs(x) > Math.abs(y)) pan((x || y) / room.clientWidth);
        else return;
        event.preventDefault();
      }, { passive: false });
    }
    addEventListener("resize", () => show(from, to));
    draw();
  }

  const data = JSON.parse(document.getElementById("data").textContent);
  [...document.querySelectorAll("article.view")].forEach((article, index) => timeline(article, data[index]));
  document.documentElement.dataset.ready = "true";
})();
