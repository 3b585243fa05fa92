"use strict";
// Draws attention maps out of the two data blocks of this page. Names are only ever written as text.
(async () => {
  const $ = (id) => document.getElementById(id);
  const MODES = ["row", "column", "rollout"], SCALES = ["row", "shared", "log"], MEAN = -1, LOWEST = 1e-4;
  const page = JSON.parse($("description").textContent);
  const [rows, columns] = page.grid, patches = rows * columns;
  const rowOf = (patch) => Math.floor(patch / columns), columnOf = (patch) => patch % columns;
  const colours = Uint8Array.from(page.colours.match(/../g), (pair) => parseInt(pair, 16));

  if (!("DecompressionStream" in window)) return; // the notice stays, and says what to do
  const packed = Uint8Array.from(atob($("data").textContent), (c) => c.charCodeAt(0));
  const unpacking = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(unpacking).arrayBuffer());

  // ---- What is looked at -------------------------------------------------------------------------------------------

  const state = {
    image: 0, moment: page.moments.length - 1, part: "encoder", layer: page.encoder.layers.length - 1, head: MEAN,
    mode: "row", scale: "row", shown: "seen", pinned: false,
    query: Math.floor(rows / 2) * columns + Math.floor(columns / 2), // a patch; -1, -2, ... are the prefix tokens
  };
  let lastPatch = state.query;
  const part = () => page[state.part], image = () => page.images[state.image];
  const isHidden = (patch) => image().hidden !== null && image().hidden[patch] === "1";
  const canRoll = () => state.part === "encoder" && part().layers[state.layer] === state.layer; // none missing before

  /** The patches that are tokens of this part, in their order: a masked encoder has the visible ones only. */
  function tokenPatches() {
    const all = Array.from({ length: patches }, (_, patch) => patch);
    return state.part === "encoder" ? all.filter((patch) => !isHidden(patch)) : all;
  }

  // ---- Weights -----------------------------------------------------------------------------------------------------

  let cache = new Map(), cacheKey = "";

  /** `make()` once for each key, for as long as image, moment and part stay. */
  function kept(key, make) {
    const now = [state.image, state.moment, state.part].join();
    if (now !== cacheKey) [cache, cacheKey] = [new Map(), now];
    if (!cache.has(key)) cache.set(key, make());
    return cache.get(key);
  }

  const size = () => part().prefix + kept("patches", tokenPatches).length;

  /** The weights of one head, size x size. A code is 255 times the square root; one shift for all codes of a row that are
   *  not zero makes their squares sum to 255 x 255 again, so that the row sums to 1. */
  function headWeights(layer, head) {
    return kept(`head ${layer} ${head}`, () => {
      const n = size(), from = image()[state.part][state.moment] + (layer * part().heads + head) * n * n;
      const weights = new Float32Array(n * n);
      for (let row = 0; row < n * n; row += n) {
        let count = 0, total = 0, squares = 0;
        for (let key = row; key < row + n; key++) {
          const code = bytes[from + key];
          if (code) { count++; total += code; squares += code * code; }
        }
        const shift = (Math.sqrt(total * total - count * (squares - 255 * 255)) - total) / count;
        for (let key = row; key < row + n; key++) {
          const code = bytes[from + key];
          weights[key] = code ? ((code + shift) / 255) ** 2 : 0;
        }
      }
      return weights;
    });
  }

  function layerWeights(layer, head) {
    if (head !== MEAN) return headWeights(layer, head);
    return kept(`mean ${layer}`, () => {
      const mean = new Float32Array(size() ** 2), heads = part().heads;
      for (let h = 0; h < heads; h++) headWeights(layer, h).forEach((weight, i) => { mean[i] += weight / heads; });
      return mean;
    });
  }

  /** A row of Abnar and Zuidema's rollout: 0.5 (A + I) of all layers up to this one, multiplied in their order. One row is
   *  a vector that goes down through the layers: no product of whole matrices is needed. */
  function rollout(layer, token) {
    return kept(`rollout ${layer} ${token}`, () => {
      const n = size();
      let row = new Float32Array(n);
      row[token] = 1;
      for (let below = layer; below >= 0; below--) {
        const weights = layerWeights(below, MEAN), next = row.map((share) => share / 2);
        row.forEach((share, i) => {
          const from = weights.subarray(i * n, i * n + n), half = share / 2;
          if (half) for (let key = 0; key < n; key++) next[key] += half * from[key];
        });
        row = next;
      }
      return row;
    });
  }

  /** What the query sees in one map: {grid, prefix}, nan where a patch is no token; null if the query is none itself. */
  function look(layer, head) {
    const places = kept("patches", tokenPatches), { prefix } = part(), n = size();
    const place = places.indexOf(state.query), token = state.query < 0 ? -1 - state.query : prefix + place;
    if (state.query >= 0 && place < 0) return null;
    const rolled = state.mode === "rollout", weights = rolled ? rollout(layer, token) : layerWeights(layer, head);
    const [start, step] = state.mode === "column" ? [token, n] : [rolled ? 0 : token * n, 1];
    const seen = { grid: new Float64Array(patches).fill(NaN), prefix: [] };
    for (let i = 0; i < n; i++) {
      const weight = weights[start + i * step];
      if (i < prefix) seen.prefix.push(weight); else seen.grid[places[i - prefix]] = weight;
    }
    return seen;
  }

  // ---- Colours -----------------------------------------------------------------------------------------------------

  const largest = (values) => values.reduce((top, value) => (value > top ? value : top), 0); // passes over nan

  /** What all but 0.5% of some shares stay below: few extreme ones would leave all others dark. `counts[code]` is how often
   *  a code comes. */
  function quantile(counts) {
    let above = counts.reduce((sum, count) => sum + count, 0) * 0.005, code = 255;
    while (code > 0 && (above -= counts[code]) >= 0) code--;
    return (Math.min(code + 1, 255) / 255) ** 2;
  }

  const sharedTops = new Map();

  /** One top for all layers, heads and checkpoints of an image, from the shares between patches. */
  function sharedTop() {
    const name = `${state.image} ${state.part}`, n = size(), { prefix, heads, layers } = part();
    if (!sharedTops.has(name)) {
      const counts = new Uint32Array(256), rowsOfAll = layers.length * heads * n;
      for (const from of image()[state.part]) {
        for (let row = 0; row < rowsOfAll; row++) {
          if (row % n >= prefix) for (let key = prefix; key < n; key++) counts[bytes[from + row * n + key]]++;
        }
      }
      sharedTops.set(name, quantile(counts));
    }
    return sharedTops.get(name);
  }

  /** The same for the rollout up to one layer, from at most about 64 patches that ask. */
  function rolloutTop(layer) {
    return kept(`top ${layer}`, () => {
      const n = size(), { prefix } = part(), counts = new Uint32Array(256), step = Math.ceil((n - prefix) / 64);
      for (let token = prefix; token < n; token += step) {
        for (const share of rollout(layer, token).subarray(prefix)) counts[Math.round(255 * Math.sqrt(share))]++;
      }
      return quantile(counts);
    });
  }

  /** The share that gets the brightest colour, in the maps of this layer. */
  function topOf(layer) {
    const each = [...Array(part().heads).keys()];
    if (state.scale === "log") return 1;
    if (state.scale === "shared") return state.mode === "rollout" ? rolloutTop(layer) : sharedTop();
    const looks = state.mode === "rollout" ? [look(layer, MEAN)] : each.map((head) => look(layer, head));
    return Math.max(1e-6, ...looks.map((seen) => (seen ? largest(seen.grid) : 0)));
  }

  function colourIndex(share, top) {
    const height = state.scale === "log" ? 1 + Math.log10(Math.max(share, LOWEST)) / 4 : share / top;
    return Math.round(255 * Math.min(height, 1));
  }

  /** One canvas pixel a patch; an absent one stays transparent, and the hatching behind shows. */
  function paint(canvas, seen, top) {
    const pixels = new ImageData(columns, rows);
    if (seen) {
      seen.grid.forEach((share, patch) => {
        if (Number.isNaN(share)) return;
        const from = 3 * colourIndex(share, top);
        pixels.data.set([colours[from], colours[from + 1], colours[from + 2], 255], 4 * patch);
      });
    }
    canvas.getContext("2d").putImageData(pixels, 0, 0);
  }

  // ---- Words -------------------------------------------------------------------------------------------------------

  const rounded = (share) => `${(100 * share).toFixed(share < 0.00995 ? 2 : 1)}%`;
  const percent = (share) => (share > 0 && share < 5e-5 ? "<0.01%" : rounded(share));
  const prefixName = (i) => (page.classToken && i === 0 ? "class token" : `register ${i - (page.classToken ? 1 : 0)}`);
  const patchName = (patch) => `row ${rowOf(patch)} column ${columnOf(patch)}`;
  const queryName = () => (state.query < 0 ? prefixName(-1 - state.query) : `patch ${patchName(state.query)}`);
  const headName = (head) => (head === MEAN ? "mean of heads" : `head ${head}`);
  const layerName = (layer) => `${state.part === "decoder" ? "decoder " : ""}layer ${part().layers[layer]}`;

  const HEADINGS = {
    row: ["Looks most at", "Outside the image"],
    column: ["Most looked at by", "From outside the image"],
    rollout: ["Draws most from", "Outside the image"],
  };

  function sentence(seen, ranked) {
    const where = state.mode === "rollout" ? `rollout up to layer ${part().layers[state.layer]}`
      : `${layerName(state.layer)}, ${headName(state.head)}`;
    if (!seen) {
      return `${where}, ${queryName()}: hidden from the encoder, so it asks nothing and nobody sees it`
        + (page.decoder ? "; the decoder asks from it" : "");
    }
    const registers = seen.prefix.slice(page.classToken ? 1 : 0); // one by one they stand in the list beside
    const mass = (page.classToken && seen.prefix.length ? `; class token ${percent(seen.prefix[0])}` : "")
      + (registers.length ? `; registers ${percent(registers.reduce((sum, share) => sum + share))}` : "");
    const most = `${patchName(ranked[0])}, ${percent(seen.grid[ranked[0]])}${mass}`;
    if (state.mode === "column") return `${where}, who looks at ${queryName()}: most of all ${most}`;
    return `${where}, ${queryName()}: most on ${most}`;
  }

  // ---- Drawing -----------------------------------------------------------------------------------------------------

  function make(tag, parent, text, className) {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    parent.append(element);
    return element;
  }

  /** An SVG over a stage, one unit a patch: outlines stay sharp whatever the size, and the pixels below untouched. */
  function makeOverlay(stage) {
    const make = (name, parent) => parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", name));
    const svg = make("svg", stage);
    svg.setAttribute("viewBox", `0 0 ${columns} ${rows}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    return ["dots halo", "dots", "keys halo", "keys", "query halo", "query"].map((kind) => {
      const path = make("path", svg);
      path.setAttribute("class", kind);
      return path;
    });
  }

  const square = (patch) => `M${columnOf(patch)} ${rowOf(patch)}h1v1h-1z`;
  const dot = (patch) => `M${columnOf(patch) + 0.5} ${rowOf(patch) + 0.5}h0`;

  function outline(overlay, keys, dots) {
    const shapes = [dots.map(dot), keys.map(square), state.query < 0 ? [] : [square(state.query)]];
    overlay.forEach((path, i) => {
      path.setAttribute("d", shapes[i >> 1].join(""));
      path.classList.toggle("pinned", state.pinned);
    });
  }

  let pictureKey = "";

  /** An image of the stream, its own pixels in the canvas; where `hidden` is 1, nothing. */
  function paintImage(canvas, { channels, height, width }, from, hidden) {
    [canvas.width, canvas.height] = [width, height];
    const drawn = new ImageData(width, height);
    for (let i = 0; i < width * height; i++) {
      const row = Math.floor((Math.floor(i / width) * rows) / height);
      const column = Math.floor(((i % width) * columns) / width);
      for (let c = 0; c < 3; c++) drawn.data[4 * i + c] = bytes[from + i * channels + (channels === 3 ? c : 0)];
      drawn.data[4 * i + 3] = hidden && hidden[row * columns + column] === "1" ? 0 : 255;
    }
    canvas.getContext("2d").putImageData(drawn, 0, 0);
  }

  function drawPicture() {
    const now = [state.image, state.moment, state.shown].join();
    if (now === pictureKey) return; // a pointer that moves changes none of it
    pictureKey = now;
    const { name, height, width, pixels, hidden, filled } = image();
    const from = state.shown === "filled" && filled ? filled[state.moment] : pixels;
    paintImage($("picture-pixels"), image(), from, state.shown === "seen" ? hidden : null);
    for (const stage of [$("picture"), $("map")]) {
      stage.style.aspectRatio = `${width} / ${height}`;
      stage.style.maxWidth = `${(75 * width) / height}vh`;
    }
    $("picture-caption").textContent = name;
    $("shown-control").hidden = !hidden && !filled;
    $("seen-choice").hidden = !hidden;
    $("filled-choice").hidden = !filled;
    [...$("thumbs").children].forEach((canvas, i) => canvas.classList.toggle("chosen", i === state.image));
  }

  function drawBar(top) {
    const canvas = $("bar"), pixels = new ImageData(256, 1);
    for (let i = 0; i < 256; i++) pixels.data.set([...colours.subarray(3 * i, 3 * i + 3), 255], 4 * i);
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    const most = `${state.scale === "shared" ? "≥ " : ""}${percent(top)}`;
    const ticks = state.scale === "log" ? ["≤ 0.01%", "0.1%", "1%", "10%", "100%"] : ["0%", percent(top / 2), most];
    $("ticks").replaceChildren();
    for (const tick of ticks) make("span", $("ticks"), tick);
  }

  function drawNumbers(seen, ranked) {
    $("sentence").textContent = sentence(seen, ranked) + (state.pinned ? "; held" : "");
    const [caption, outside] = HEADINGS[state.mode];
    $("table-caption").textContent = caption;
    $("prefix-heading").textContent = outside;
    $("strongest").replaceChildren();
    const shown = ranked.slice(0, 6), all = seen ? seen.grid.reduce((sum, share) => sum + (share || 0), 0) : 0;
    const line = (patch, share, top) => {
      const row = make("tr", $("strongest")), name = make("td", row, `${rowOf(patch)}, ${columnOf(patch)} `);
      make("small", name, (patch === state.query ? "itself " : "") + (isHidden(patch) ? "hidden" : ""));
      make("td", row, percent(share), "number");
      const bar = make("div", make("td", row, undefined, "meter"));
      bar.style.width = `${Math.min((100 * share) / top, 100)}%`;
    };
    for (const patch of shown) line(patch, seen.grid[patch], seen.grid[ranked[0]]);
    if (seen && state.mode !== "column" && ranked.length > shown.length) {
      const rest = all - shown.reduce((sum, patch) => sum + seen.grid[patch], 0);
      const row = make("tr", $("strongest"), undefined, "rest");
      make("td", row, `the other ${ranked.length - shown.length}`);
      make("td", row, percent(Math.max(rest, 0)), "number");
      make("td", row);
    }
    [...$("prefix").children].forEach((item, i) => {
      const button = item.firstChild, share = seen && i < seen.prefix.length ? seen.prefix[i] : NaN;
      item.hidden = i >= part().prefix;
      button.setAttribute("aria-pressed", String(state.query === -1 - i));
      button.children[1].textContent = Number.isNaN(share) ? "–" : percent(share);
      button.children[2].firstChild.style.width = Number.isNaN(share) ? "0" : `${100 * share}%`;
    });
    $("prefix-block").hidden = part().prefix === 0;
    $("note").textContent = note(seen, all);
  }

  function note(seen, all) {
    const words = [], column = state.mode === "column";
    if (seen && column) {
      const sum = (all + seen.prefix.reduce((a, b) => a + b, 0)).toFixed(2);
      words.push(`In all it receives ${sum}; even attention would give each token 1.00.`);
    } else if (seen) words.push(`Spread evenly, each token would get ${percent(1 / size())}.`);
    if (seen && state.part === "decoder" && image().hidden) {
      const visible = seen.grid.reduce((sum, share, patch) => sum + (isHidden(patch) ? 0 : share), 0);
      words.push(column ? "Dots mark hidden patches."
        : `${percent(visible)} is on visible patches, ${percent(all - visible)} on hidden ones (dots).`);
    }
    if (state.pinned) words.push("The patch is held: click it again or press Escape to let go.");
    if (state.part === "decoder") words.push("A rollout is for the encoder.");
    else if (!canRoll()) words.push("A rollout needs all layers below; this page leaves some out.");
    return words.join(" ");
  }

  /** A small map to click on. Made once; drawn with every change. */
  function makeTile(strip, onClick) {
    const button = make("button", make("div", strip));
    button.type = "button";
    const canvas = make("canvas", button);
    [canvas.width, canvas.height] = [columns, rows];
    canvas.setAttribute("aria-hidden", "true");
    make("span", button);
    button.addEventListener("click", onClick);
    return button;
  }

  function drawStrip(id, values, current, name, caption, draw, choose) {
    const strip = $(id);
    while (strip.children.length > values.length) strip.lastChild.remove();
    while (strip.children.length < values.length) {
      const i = strip.children.length;
      makeTile(strip, () => choose(i));
    }
    values.forEach((value, i) => {
      const button = strip.children[i].firstChild;
      draw(button.firstChild, value);
      button.firstChild.style.aspectRatio = `${image().width} / ${image().height}`;
      button.lastChild.textContent = caption(value);
      button.setAttribute("aria-label", name(value));
      button.setAttribute("aria-pressed", String(value === current));
    });
  }

  function draw() {
    const seen = look(state.layer, state.head), rolled = state.mode === "rollout", top = topOf(state.layer);
    const ranked = seen ? [...seen.grid.keys()].filter((p) => !Number.isNaN(seen.grid[p])) : [];
    ranked.sort((a, b) => seen.grid[b] - seen.grid[a] || a - b);
    paint($("map-pixels"), seen, top);
    drawBar(top);
    document.querySelector(".bar").hidden = !seen; // a hidden patch asks nothing: no map, no scale
    drawNumbers(seen, ranked);
    const hiddenTokens = state.part === "decoder" ? [...Array(patches).keys()].filter(isHidden) : [];
    outline(mapOverlay, [], hiddenTokens);
    outline(pictureOverlay, ranked.slice(0, 3), []);

    const heads = [MEAN, ...Array(part().heads).keys()], layers = [...part().layers.keys()];
    $("heads-block").hidden = rolled;
    $("heads-heading").textContent = `Heads of ${layerName(state.layer)}`;
    if (!rolled) {
      drawStrip("heads", heads, state.head, headName, (head) => (head === MEAN ? "mean" : `head ${head}`),
        (canvas, head) => paint(canvas, look(state.layer, head), top), (i) => set({ head: heads[i] }));
    }
    $("layers-heading").textContent = rolled ? "Rollout up to each layer"
      : `Layers of the ${state.part}, ${headName(state.head)}`;
    const fits = (layer) => !rolled || part().layers[layer] === layer;
    const own = state.scale === "row" || (rolled && state.scale === "shared");
    drawStrip("layers", layers.filter(fits), state.layer, layerName,
      (layer) => `${part().layers[layer]}${own && seen ? ` · ${Math.round(100 * topOf(layer))}%` : ""}`,
      (canvas, layer) => paint(canvas, look(layer, state.head), topOf(layer)), (i) => set({ layer: layers[i] }));
    if (own && seen) $("layers-heading").textContent += " (brightest colour: the share below each)";
    tell();
  }

  let telling = 0, told = null;

  /** Half a second after the last change: a screen reader is not flooded while the pointer moves, nor the history. */
  function tell() {
    clearTimeout(telling);
    telling = setTimeout(() => {
      const chosen = { image: $("image"), moment: $("moment-name"), scale: $("scale") }, words = [];
      for (const [key, control] of Object.entries(chosen)) { // what the sentence does not say, where it has changed
        const text = control.selectedOptions ? control.selectedOptions[0].textContent : control.textContent;
        if (told && state[key] !== told[key]) words.push(key === "scale" ? `colours ${text}` : text);
      }
      told = { image: state.image, moment: state.moment, scale: state.scale };
      $("live").textContent = [...words, $("sentence").textContent].join("; ");
      const { query, head } = state;
      const link = {
        image: state.image, moment: state.moment, part: state.part, layer: part().layers[state.layer],
        head: head === MEAN ? "mean" : head, mode: state.mode, scale: state.scale,
        query: query < 0 ? query : `${rowOf(query)},${columnOf(query)}`, held: Number(state.pinned),
      };
      history.replaceState(null, "", `#${new URLSearchParams(link)}`);
    }, 500);
  }

  // ---- Changing ----------------------------------------------------------------------------------------------------

  function fillHeads() {
    const select = $("head");
    if (select.children.length === part().heads + 1) return;
    select.replaceChildren();
    for (const head of [MEAN, ...Array(part().heads).keys()]) make("option", select, headName(head)).value = head;
  }

  /** The only way to change what is shown: whatever does not fit the rest is brought to what does. */
  function set(change) {
    const before = state.part;
    Object.assign(state, change);
    if (!part()) state.part = "encoder";
    const last = part().layers.length - 1;
    if (state.part !== before) state.layer = last;
    state.layer = Math.min(state.layer, last);
    state.head = Math.min(state.head, part().heads - 1);
    if (state.mode === "rollout" && !canRoll()) state.mode = "row";
    if (state.query < -part().prefix) state.query = lastPatch;
    if (state.query >= 0) lastPatch = state.query;
    if (state.shown === "seen" && !image().hidden) state.shown = "original";

    fillHeads();
    $("image").value = state.image;
    $("moment").value = state.moment;
    $("moment-name").textContent = page.moments[state.moment];
    $("moment").setAttribute("aria-valuetext", page.moments[state.moment]);
    $("layer").max = last;
    $("layer").value = state.layer;
    $("layer-name").textContent = part().layers[state.layer];
    $("layer").setAttribute("aria-valuetext", layerName(state.layer));
    $("head").value = state.mode === "rollout" ? MEAN : state.head;
    $("head").disabled = state.mode === "rollout";
    $("scale").value = state.scale;
    for (const input of document.querySelectorAll("input[type=radio]")) input.checked = state[input.name] === input.value;
    $("rollout-choice").firstChild.disabled = !canRoll();
    drawPicture();
    draw();
  }

  const turn = (value, step, count) => (((value + step) % count) + count) % count;

  function move(down, right) {
    const from = state.query < 0 ? lastPatch : state.query; // from a token without a place, back to the grid
    const [row, column] = [rowOf(from) + (state.query < 0 ? 0 : down), columnOf(from) + (state.query < 0 ? 0 : right)];
    set({ query: Math.min(Math.max(row, 0), rows - 1) * columns + Math.min(Math.max(column, 0), columns - 1) });
  }

  const LETTERS = {
    l: (step) => set({ layer: turn(state.layer, step, part().layers.length) }),
    h: (step) => set({ head: turn(state.head + 1, step, part().heads + 1) - 1 }),
    c: (step) => {
      const now = state.query < 0 ? -state.query : 0, next = turn(now, step, part().prefix + 1);
      set({ query: next ? -next : lastPatch });
    },
    m: (step) => {
      const modes = MODES.filter((mode) => mode !== "rollout" || canRoll());
      set({ mode: modes[turn(modes.indexOf(state.mode), step, modes.length)] });
    },
    d: () => set({ part: state.part === "encoder" ? "decoder" : "encoder" }),
    s: (step) => set({ scale: SCALES[turn(SCALES.indexOf(state.scale), step, SCALES.length)] }),
    i: (step) => set({ image: turn(state.image, step, page.images.length) }),
    t: (step) => set({ moment: turn(state.moment, step, page.moments.length) }),
  };
  const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

  document.addEventListener("keydown", (event) => {
    // A list jumps to a typed letter by itself, and a system's shortcuts are its own.
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
    const onMap = event.target === $("map");
    const pointed = event.target === document.body && document.querySelector(".stage:hover");
    const letter = LETTERS[event.key.toLowerCase()];
    if (letter) letter(event.shiftKey ? -1 : 1);
    else if (ARROWS[event.key] && (onMap || pointed)) move(...ARROWS[event.key]);
    else if (onMap && (event.key === "Enter" || event.key === " ")) set({ pinned: !state.pinned });
    else if (event.key === "Escape") set({ pinned: false });
    else return;
    event.preventDefault();
  });

  function follow(stage) {
    let last = null; // the patch under the pointer: a tremble within it does not undo what keys did
    const patchAt = (event) => {
      const box = stage.getBoundingClientRect();
      const cell = (at, length, count) => Math.min(Math.max(Math.floor((at / length) * count), 0), count - 1);
      const row = cell(event.clientY - box.top, box.height, rows);
      return row * columns + cell(event.clientX - box.left, box.width, columns);
    };
    stage.addEventListener("pointermove", (event) => {
      const patch = patchAt(event);
      if (patch !== last && !state.pinned && event.pointerType !== "touch") set({ query: patch });
      last = patch;
    });
    stage.addEventListener("pointerleave", () => { last = null; });
    stage.addEventListener("click", (event) => {
      const patch = patchAt(event);
      set({ pinned: !(state.pinned && patch === state.query), query: patch });
    });
  }

  /** What a link asks for, as far as it is there. */
  function fromLink() {
    const link = new URLSearchParams(location.hash.slice(1)), change = {};
    const number = (key, count, from = 0) => {
      const value = link.has(key) && link.get(key) !== "" ? Number(link.get(key)) : NaN;
      if (Number.isInteger(value) && value >= from && value < count) change[key] = value;
    };
    const word = (key, words) => { if (words.includes(link.get(key))) change[key] = link.get(key); };
    number("image", page.images.length);
    number("moment", page.moments.length);
    word("part", page.decoder ? ["encoder", "decoder"] : ["encoder"]);
    word("mode", MODES);
    word("scale", SCALES);
    if (link.get("head") === "mean") change.head = MEAN; else number("head", page[change.part || state.part].heads);
    const place = /^(\d+),(\d+)$/.exec(link.get("query") || "");
    const [row, column] = place ? [Number(place[1]), Number(place[2])] : [rows, columns];
    if (row < rows && column < columns) change.query = row * columns + column;
    else number("query", 0, -page.encoder.prefix);
    set(change); // the part first: layers are counted within it
    const layer = part().layers.indexOf(Number(link.get("layer") || NaN));
    if (layer >= 0) set({ layer, mode: change.mode || state.mode });
    set({ pinned: link.get("held") === "1" });
  }

  // ---- Beginning ---------------------------------------------------------------------------------------------------

  page.images.forEach((one, i) => {
    make("option", $("image"), one.name || `image ${i}`).value = i;
    const thumb = make("canvas", $("thumbs")); // for the pointer only: the list above does the same for all others
    paintImage(thumb, one, one.pixels, null);
    thumb.addEventListener("click", () => set({ image: i }));
  });
  $("thumbs").hidden = page.images.length === 1;
  for (const [name, offered] of Object.entries({
    image: page.images.length > 1, part: page.decoder, moment: page.moments.length > 1, prefix: page.encoder.prefix,
  })) {
    $(`${name}-key`).hidden = !offered;
    if ($(`${name}-control`)) $(`${name}-control`).hidden = !offered;
  }
  $("moment").max = page.moments.length - 1;
  [$("map-pixels").width, $("map-pixels").height] = [columns, rows];
  $("map").setAttribute("aria-label", `Attention map, ${rows} rows, ${columns} columns; arrow keys move the query patch`);
  for (let i = 0; i < page.encoder.prefix; i++) {
    const button = make("button", make("li", $("prefix")));
    button.type = "button";
    make("span", button, prefixName(i));
    make("span", button, undefined, "number");
    make("div", make("span", button, undefined, "meter"));
    button.addEventListener("click", () => set({ query: -1 - i, pinned: true }));
  }
  if (isHidden(state.query)) { // begin where there is something to see: at the visible patch nearest to the centre
    const away = (patch) => Math.hypot(rowOf(patch) - (rows - 1) / 2, columnOf(patch) - (columns - 1) / 2);
    state.query = lastPatch = tokenPatches().sort((a, b) => away(a) - away(b))[0];
  }
  const mapOverlay = makeOverlay($("map")), pictureOverlay = makeOverlay($("picture"));
  for (const key of ["image", "head"]) $(key).addEventListener("change", () => set({ [key]: Number($(key).value) }));
  for (const key of ["layer", "moment"]) $(key).addEventListener("input", () => set({ [key]: Number($(key).value) }));
  $("scale").addEventListener("change", () => set({ scale: $("scale").value }));
  for (const input of document.querySelectorAll("input[type=radio]")) {
    input.addEventListener("input", () => set({ [input.name]: input.value }));
  }
  follow($("picture"));
  follow($("map"));
  window.addEventListener("hashchange", fromLink);
  $("notice").hidden = true;
  $("explorer").hidden = false;
  fromLink();
})();
