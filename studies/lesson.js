"use strict";
// The shipped model, forward and backward, and a page around it. Letters: n tokens, D the width of a part, d that of a head.
(async () => {
  const page = JSON.parse(document.getElementById("description").textContent);
  const [rows, columns] = page.grid, [patchHeight, patchWidth] = page.patch;
  const patches = rows * columns, pixels = 3 * patchHeight * patchWidth;

  // ---- The weights, as the model's file has them: in 16 bits -----------------------------------------------------------

  const text = atob(document.getElementById("data").textContent), packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const stream = await new Response(unpacked).arrayBuffer();

  /** A number of 16 bits, IEEE 754: one for the sign, five for the exponent, ten for the fraction. */
  function fromHalf(bits) {
    const exponent = (bits >> 10) & 31, fraction = (bits & 1023) / 1024;
    const size = exponent ? 2 ** (exponent - 15) * (1 + fraction) : 2 ** -14 * fraction;
    return bits & 0x8000 ? -size : size;
  }

  const trained = {};
  for (const [name, { rows, columns, at }] of Object.entries(page.tensors)) {
    const data = Float32Array.from(new Uint16Array(stream, at, rows * columns), fromHalf);
    trained[name] = { rows, columns, data };
  }

  const pictureSize = 3 * rows * patchHeight * columns * patchWidth;
  const pictures = page.pictures.map((_, i) => new Uint8Array(stream, page.pixels + i * pictureSize, pictureSize));

  /** Numbers from 0 to 1 that a seed decides (mulberry32). */
  function random(seed) {
    return () => {
      seed = (seed + 0x6d2b79f5) | 0;
      let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
      t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
      return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
  }

  /** Weights before training, by the rules of vit/encoder.py: Xavier-uniform linear maps, small tokens and outputs. */
  function untrainedWeights() {
    const draw = random(0), weights = {};
    const normal = () => 0.02 * Math.sqrt(-2 * Math.log(1 - draw())) * Math.cos(2 * Math.PI * draw());
    for (const name in trained) {
      const { rows, columns, data } = trained[name];
      const one = (weights[name] = { rows, columns, data: new Float32Array(data.length) });
      if (name.endsWith("pos_embed")) one.data.set(data);
      else if (name.includes("norm") && name.endsWith("weight")) one.data.fill(1);
      else if (name.endsWith("token") || name.endsWith("pred.weight")) one.data.forEach((_, i) => { one.data[i] = normal(); });
      else if (name.endsWith("weight")) {
        const outputs = name.includes("qkv") ? rows / 3 : rows, bound = Math.sqrt(6 / (outputs + columns));
        one.data.forEach((_, i) => { one.data[i] = bound * (2 * draw() - 1); });
      }
    }
    return weights;
  }

  /** W_Q = W_K = W_V = I, as the weight and bias of one layer `qkv`. */
  function identityMaps(width) {
    const weight = { rows: 3 * width, columns: width, data: new Float32Array(3 * width * width) };
    for (let i = 0; i < 3 * width; i++) weight.data[i * width + (i % width)] = 1;
    return [weight, { rows: 1, columns: 3 * width, data: new Float32Array(3 * width) }];
  }

  // ---- The parts of a block, and their derivatives --------------------------------------------------------------------

  /** y = x W^T + b: x (n, columns), y (n, rows). */
  function linear(x, n, { rows, columns, data }, bias) {
    const y = new Float32Array(n * rows);
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < rows; j++) {
        let sum = bias ? bias.data[j] : 0;
        for (let p = 0, a = i * columns, b = j * columns; p < columns; p++) sum += x[a + p] * data[b + p];
        y[i * rows + j] = sum;
      }
    }
    return y;
  }

  /** The derivative of x, given that of y. */
  function linearBack(gy, n, { rows, columns, data }) {
    const gx = new Float32Array(n * columns);
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < rows; j++) {
        const g = gy[i * rows + j];
        if (g) for (let p = 0, a = i * columns, b = j * columns; p < columns; p++) gx[a + p] += g * data[b + p];
      }
    }
    return gx;
  }

  function norm(x, n, weight, bias, eps) {
    const D = weight.columns, y = new Float32Array(n * D), unit = new Float32Array(n * D), scale = new Float32Array(n);
    for (let i = 0; i < n; i++) {
      const row = x.subarray(i * D, i * D + D);
      let mean = 0, square = 0;
      for (const value of row) mean += value / D;
      for (const value of row) square += (value - mean) ** 2 / D;
      scale[i] = 1 / Math.sqrt(square + eps);
      for (let p = 0; p < D; p++) {
        unit[i * D + p] = (row[p] - mean) * scale[i];
        y[i * D + p] = unit[i * D + p] * weight.data[p] + bias.data[p];
      }
    }
    return { y, unit, scale };
  }

  function normBack(gy, { unit, scale }, n, weight) {
    const D = weight.columns, gx = new Float32Array(n * D);
    for (let i = 0; i < n; i++) {
      let mean = 0, along = 0;
      for (let p = i * D; p < i * D + D; p++) {
        const g = gy[p] * weight.data[p - i * D];
        mean += g / D;
        along += (g * unit[p]) / D;
      }
      for (let p = i * D; p < i * D + D; p++) gx[p] = scale[i] * (gy[p] * weight.data[p - i * D] - mean - unit[p] * along);
    }
    return gx;
  }

  /** The error function (Abramowitz and Stegun 7.1.26), off by less than 2e-7. */
  function erf(x) {
    const t = 1 / (1 + 0.3275911 * Math.abs(x));
    const sum = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
    return Math.sign(x) * (1 - sum * Math.exp(-x * x));
  }
  const gelu = (x) => (x / 2) * (1 + erf(x / Math.SQRT2));
  const geluSlope = (x) => (1 + erf(x / Math.SQRT2)) / 2 + (x * Math.exp((-x * x) / 2)) / Math.sqrt(2 * Math.PI);
  const sum = (a, b) => a.map((value, i) => value + b[i]);

  /** All heads: scores q . k / sqrt(d), their softmax, and what each token takes of the values. */
  function attend(qkv, n, heads, D) {
    const d = D / heads, mixed = new Float32Array(n * D), scores = [], shares = [];
    for (let h = 0; h < heads; h++) {
      const score = new Float32Array(n * n), share = new Float32Array(n * n);
      for (let i = 0; i < n; i++) {
        let top = -Infinity, total = 0;
        for (let j = 0; j < n; j++) {
          let dot = 0;
          for (let c = 0, q = i * 3 * D + h * d, k = j * 3 * D + D + h * d; c < d; c++) dot += qkv[q + c] * qkv[k + c];
          score[i * n + j] = dot / Math.sqrt(d);
          top = Math.max(top, score[i * n + j]);
        }
        for (let j = i * n; j < i * n + n; j++) total += share[j] = Math.exp(score[j] - top);
        for (let j = 0; j < n; j++) {
          const a = (share[i * n + j] /= total);
          for (let c = 0, o = i * D + h * d, v = j * 3 * D + 2 * D + h * d; c < d; c++) mixed[o + c] += a * qkv[v + c];
        }
      }
      scores.push(score);
      shares.push(share);
    }
    return { scores, shares, mixed };
  }

  /** From g = dL/do: g . v of every pair, dL/dscore = a (g . v - its mean), and dL/dqkv. */
  function attendBack(g, { qkv, shares }, n, heads, D) {
    const d = D / heads, gqkv = new Float32Array(n * 3 * D), helps = [], gscores = [];
    for (let h = 0; h < heads; h++) {
      const help = new Float32Array(n * n), gscore = new Float32Array(n * n);
      for (let i = 0; i < n; i++) {
        let mean = 0;
        for (let j = 0; j < n; j++) {
          let dot = 0;
          for (let c = 0, o = i * D + h * d, v = j * 3 * D + 2 * D + h * d; c < d; c++) dot += g[o + c] * qkv[v + c];
          help[i * n + j] = dot;
          mean += shares[h][i * n + j] * dot;
        }
        for (let j = 0; j < n; j++) {
          const a = shares[h][i * n + j], s = (gscore[i * n + j] = a * (help[i * n + j] - mean));
          const q = i * 3 * D + h * d, k = j * 3 * D + D + h * d, v = k + D, o = i * D + h * d;
          for (let c = 0; c < d; c++) {
            gqkv[q + c] += (s * qkv[k + c]) / Math.sqrt(d);
            gqkv[k + c] += (s * qkv[q + c]) / Math.sqrt(d);
            gqkv[v + c] += a * g[o + c];
          }
        }
      }
      helps.push(help);
      gscores.push(gscore);
    }
    return { helps, gscores, gqkv };
  }

  // ---- The model ------------------------------------------------------------------------------------------------------

  const layers = [];
  for (const part of ["encoder", "decoder"]) {
    for (let block = 0; block < page[part].blocks; block++) layers.push({ part, block, prefix: `${part}.blocks.${block}.`, ...page[part] });
  }

  /** A block, x + attention and then + MLP, with all that its derivative needs. */
  function forwardBlock(weights, { prefix, width, heads, eps }, x, n) {
    const w = (name) => weights[prefix + name];
    const norm1 = norm(x, n, w("norm1.weight"), w("norm1.bias"), eps);
    const qkv = linear(norm1.y, n, w("attn.qkv.weight"), w("attn.qkv.bias"));
    const attention = attend(qkv, n, heads, width);
    const added = linear(attention.mixed, n, w("attn.proj.weight"), w("attn.proj.bias"));
    const middle = sum(x, added);
    const norm2 = norm(middle, n, w("norm2.weight"), w("norm2.bias"), eps);
    const inner = linear(norm2.y, n, w("mlp.fc1.weight"), w("mlp.fc1.bias"));
    const out = sum(middle, linear(inner.map(gelu), n, w("mlp.fc2.weight"), w("mlp.fc2.bias")));
    return { x, n, norm1, qkv, ...attention, added, norm2, inner, out };
  }

  function backwardBlock(weights, { prefix, width, heads }, done, gout) {
    const w = (name) => weights[prefix + name], { n } = done;
    const ginner = linearBack(gout, n, w("mlp.fc2.weight")).map((g, i) => g * geluSlope(done.inner[i]));
    const gmiddle = sum(gout, normBack(linearBack(ginner, n, w("mlp.fc1.weight")), done.norm2, n, w("norm2.weight")));
    const g = linearBack(gmiddle, n, w("attn.proj.weight"));
    const back = attendBack(g, done, n, heads, width);
    const gx = sum(gmiddle, normBack(linearBack(back.gqkv, n, w("attn.qkv.weight")), done.norm1, n, w("norm1.weight")));
    return { g, ...back, gx };
  }

  /** The patches of a picture, uint8 (H, W, 3), whose patch i lies at place order[i]; (L, 3 p q) from 0 to 1. */
  function cut(picture, order) {
    const out = new Float32Array(patches * pixels), width = columns * patchWidth;
    order.forEach((from, place) => {
      const top = Math.floor(from / columns) * patchHeight, left = (from % columns) * patchWidth;
      for (let c = 0, i = place * pixels; c < 3; c++) {
        for (let y = 0; y < patchHeight; y++) {
          for (let x = 0; x < patchWidth; x++, i++) out[i] = picture[((top + y) * width + left + x) * 3 + c] / 255;
        }
      }
    });
    return out;
  }

  const area = patchHeight * patchWidth;
  const normalised = (values) => values.map((value, i) => {
    const channel = Math.floor((i % pixels) / area);
    return (value - page.mean[channel]) / page.std[channel];
  });

  /** The mean and the standard deviation of each patch, by which its target is normalised. */
  function statistics(values, patch) {
    const own = values.subarray(patch * pixels, (patch + 1) * pixels);
    const mean = own.reduce((total, value) => total + value, 0) / pixels;
    const variance = own.reduce((total, value) => total + (value - mean) ** 2, 0) / (pixels - 1);
    return [mean, Math.sqrt(variance + 1e-6)];
  }

  /** The whole model on a picture: every layer's numbers, and the prediction of every patch. */
  function forward(weights, values, hidden) {
    const visible = [...Array(patches).keys()].filter((patch) => !hidden[patch]);
    const inputs = normalised(values), { width, eps } = page.encoder, D = width, E = page.decoder.width;

    // x of the encoder: the class token, and the visible patches times W_E; to each its position is added
    const n = visible.length + 1, seen = new Float32Array(visible.length * pixels);
    visible.forEach((patch, i) => seen.set(inputs.subarray(patch * pixels, (patch + 1) * pixels), i * pixels));
    const embedded = linear(seen, visible.length, weights["encoder.patch_embed.proj.weight"], weights["encoder.patch_embed.proj.bias"]);
    let x = new Float32Array(n * D);
    x.set(weights["encoder.cls_token"].data);
    x.set(embedded, D);
    [-1, ...visible].forEach((patch, i) => {
      for (let p = 0; p < D; p++) x[i * D + p] += weights["encoder.pos_embed"].data[(patch + 1) * D + p];
    });

    const done = layers.map(() => null);
    layers.forEach((layer, number) => {
      if (layer.part === "encoder") x = (done[number] = forwardBlock(weights, layer, x, n)).out;
    });
    const encoderNorm = norm(x, n, weights["encoder.norm.weight"], weights["encoder.norm.bias"], eps);

    // x of the decoder: the class token, and every patch in its place, a mask token where it is hidden
    const narrow = linear(encoderNorm.y, n, weights["decoder.embed.weight"], weights["decoder.embed.bias"]);
    let y = new Float32Array((patches + 1) * E);
    for (let i = 0; i <= patches; i++) y.set(weights["decoder.mask_token"].data, i * E);
    [-1, ...visible].forEach((patch, i) => y.set(narrow.subarray(i * E, (i + 1) * E), (patch + 1) * E));
    y = sum(y, weights["decoder.pos_embed"].data);
    layers.forEach((layer, number) => {
      if (layer.part === "decoder") y = (done[number] = forwardBlock(weights, layer, y, patches + 1)).out;
    });
    const decoderNorm = norm(y, patches + 1, weights["decoder.norm.weight"], weights["decoder.norm.bias"], page.decoder.eps);
    const predicted = linear(decoderNorm.y, patches + 1, weights["decoder.pred.weight"], weights["decoder.pred.bias"]);
    return { visible, values: inputs, done, encoderNorm, decoderNorm, predicted: predicted.subarray(pixels) };
  }

  /** The error of one hidden patch: the mean square of what its normalised pixels lack. */
  function errorOf(run, patch) {
    const [mean, deviation] = statistics(run.values, patch);
    let error = 0;
    for (let p = patch * pixels; p < (patch + 1) * pixels; p++) {
      error += (run.predicted[p] - (run.values[p] - mean) / deviation) ** 2 / pixels;
    }
    return error;
  }

  /** The derivatives of that error, from the prediction back to layer `lowest`: those of each layer's attention. */
  function backward(weights, run, patch, lowest) {
    const [mean, deviation] = statistics(run.values, patch), gpredicted = new Float32Array((patches + 1) * pixels);
    for (let p = patch * pixels; p < (patch + 1) * pixels; p++) {
      gpredicted[p + pixels] = (2 / pixels) * (run.predicted[p] - (run.values[p] - mean) / deviation);
    }
    const back = layers.map(() => null);
    let g = normBack(linearBack(gpredicted, patches + 1, weights["decoder.pred.weight"]), run.decoderNorm, patches + 1, weights["decoder.norm.weight"]);
    for (let number = layers.length - 1; number >= lowest; number--) {
      if (layers[number].part === "encoder" && layers[number + 1].part === "decoder") {
        // only the visible patches and the class token come from the encoder
        const E = page.decoder.width, n = run.visible.length + 1, narrow = new Float32Array(n * E);
        [-1, ...run.visible].forEach((from, i) => narrow.set(g.subarray((from + 1) * E, (from + 2) * E), i * E));
        g = normBack(linearBack(narrow, n, weights["decoder.embed.weight"]), run.encoderNorm, n, weights["encoder.norm.weight"]);
      }
      back[number] = backwardBlock(weights, layers[number], run.done[number], g);
      g = back[number].gx;
    }
    return back;
  }

  // ---- What is chosen, and what follows from it -----------------------------------------------------------------------

  const state = {};
  let weights, untrained, run, back;
  let past; // the numbers before the first step, and after each

  function reset() {
    Object.assign(state, {
      picture: 0, order: [...Array(patches).keys()], hidden: [...page.pictures[0].hidden].map((cell) => cell === "1"),
      layer: layers.length - 1, head: page.head, query: page.query, guessed: page.query, key: null, kind: "trained", rate: page.rates[0],
    });
  }

  const layer = () => layers[state.layer];
  const isDecoder = () => layer().part === "decoder";
  /** The row of a patch (-1: the class token) among the tokens of the chosen layer; -1 if it is none of them. */
  const tokenOf = (patch) => (isDecoder() || patch < 0 ? patch + 1 : run.visible.indexOf(patch) + 1 || -1);
  const isToken = (patch) => isDecoder() || !state.hidden[patch];

  /** Take the weights that are asked for, as they were before any step. */
  function takeWeights() {
    if (state.kind === "untrained") untrained ||= untrainedWeights();
    weights = { ...(state.kind === "untrained" ? untrained : trained) };
    const { prefix, width } = layer();
    if (state.kind === "identity") [weights[`${prefix}attn.qkv.weight`], weights[`${prefix}attn.qkv.bias`]] = identityMaps(width);
    past = [];
  }

  function compute() {
    const values = cut(pictures[state.picture], state.order);
    run = forward(weights, values, state.hidden);
    run.pixels = values;
    if (!state.hidden[state.guessed]) state.guessed = state.hidden.indexOf(true);
    if (!isToken(state.query)) state.query = nearest(state.query, (patch) => !state.hidden[patch]);
    back = backward(weights, run, state.guessed, state.layer);
    past.push(results());
  }

  function nearest(patch, suits) {
    const distance = (a, b) => Math.hypot(Math.floor(a / columns) - Math.floor(b / columns), (a % columns) - (b % columns));
    return [...Array(patches).keys()].filter(suits).sort((a, b) => distance(a, patch) - distance(b, patch))[0];
  }

  /** Every number that the page shows of the chosen query, head and layer; keys are tokens, the class token first. */
  function results() {
    const { width: D, heads } = layer(), d = D / heads, h = state.head, done = run.done[state.layer], { n, qkv } = done;
    const i = tokenOf(state.query), row = (matrix) => Array.from(matrix[h].subarray(i * n, i * n + n));
    const piece = (values, at, length) => Array.from(values.subarray(at, at + length));
    const gscores = row(back[state.layer].gscores);
    const wanted = gscores.indexOf(Math.min(...gscores));
    const chosen = state.key === null || tokenOf(state.key) < 0 ? wanted : tokenOf(state.key);
    return {
      n, d, token: i, key: chosen, tokens: [-1, ...(isDecoder() ? [...Array(patches).keys()] : run.visible)],
      x: piece(done.norm1.y, i * D, D), q: piece(qkv, i * 3 * D + h * d, d), k: piece(qkv, chosen * 3 * D + D + h * d, d),
      v: piece(qkv, chosen * 3 * D + 2 * D + h * d, d), o: piece(done.mixed, i * D + h * d, d), added: piece(done.added, i * D, D),
      scores: row(done.scores), shares: row(done.shares), helps: row(back[state.layer].helps), gscores,
      guess: piece(predictedPixels(), state.guessed * pixels, pixels),
      g: piece(back[state.layer].g, i * D + h * d, d), error: errorOf(run, state.guessed),
    };
  }

  /** A step of W_Q and W_K of this layer, all heads: less the gradient of the error times the learning rate. */
  function step() {
    const name = `${layer().prefix}attn.qkv.weight`, old = weights[name], D = layer().width, { n, norm1 } = run.done[state.layer];
    const gradient = new Float32Array(2 * D * D), g = back[state.layer].gqkv;
    for (let token = 0; token < n; token++) {
      for (let j = 0; j < 2 * D; j++) {
        const slope = g[token * 3 * D + j];
        if (slope) for (let p = 0; p < D; p++) gradient[j * D + p] += slope * norm1.y[token * D + p];
      }
    }
    const data = old.data.slice();
    gradient.forEach((slope, i) => { data[i] -= state.rate * slope; });
    weights[name] = { ...old, data };
  }

  // ---- Drawing --------------------------------------------------------------------------------------------------------

  const $ = (id) => document.getElementById(id);
  let colours = {}; // of palette.css, read once for each drawing
  const style = (name) => (colours[name] ||= getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const number = (value, digits = 2) => value.toFixed(digits).replace("-", "−");
  /** A number that may be tiny after some steps: with so many decimals, or with a power of ten. */
  const small = (value, digits = 3) => (value && Math.abs(value) < 10 ** -digits
    ? value.toExponential(1).replaceAll("-", "−") : number(value, digits));
  const percent = (share) => `${(100 * share).toFixed(1)}%`;
  const place = (patch) => (patch < 0 ? "the class token" : `row ${Math.floor(patch / columns)}, column ${patch % columns}`);

  /** Paint an array of colours, [r, g, b] or null for nothing, on a canvas of width x height pixels. */
  function paint(canvas, width, height, colours) {
    Object.assign(canvas, { width, height });
    const context = canvas.getContext("2d"), image = context.createImageData(width, height);
    colours.forEach((colour, i) => { if (colour) image.data.set([...colour, 255], 4 * i); });
    context.putImageData(image, 0, 0);
  }

  /** The colour of a value from -1 to 1: from the paper to `above` or `below`. */
  function shade(value, above, below) {
    const paper = rgb(style("--card")), end = rgb(value < 0 ? below : above), share = Math.min(Math.abs(value), 1);
    return paper.map((part, i) => Math.round(part + share * (end[i] - part)));
  }

  function strip(id, values, colour, what) {
    const top = Math.max(...values.map(Math.abs)) || 1;
    paint($(id), values.length, 1, values.map((value) => shade(value / top, style(colour), style("--quiet"))));
    $(id).setAttribute("aria-label", `${what}: ${values.length} numbers, at most ${number(top)} in size`);
  }

  /** A patch's outline in a grid of `columns` x `rows` units. */
  const outline = (patch) => `M${patch % columns} ${Math.floor(patch / columns)}h1v1h-1z`;

  function mark(svg, marks) {
    svg.setAttribute("viewBox", `0 0 ${columns} ${rows}`);
    svg.replaceChildren();
    for (const [patch, kind] of marks) {
      if (patch === null || patch < 0) continue;
      for (const name of [`${kind} halo`, kind]) {
        const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
        path.setAttribute("class", name);
        path.setAttribute("d", outline(patch));
        svg.append(path);
      }
    }
  }

  const maps = {};

  /** Make a map of numbers, one a token, on which a key can be chosen. */
  function makeMap(id, ends) {
    const cells = document.createElement("div"), canvas = document.createElement("canvas"), side = document.createElement("div");
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), bar = document.createElement("canvas");
    const button = document.createElement("button"), swatch = document.createElement("i"), text = document.createElement("span");
    const legend = document.createElement("div"), low = document.createElement("span"), high = document.createElement("span");
    cells.className = "cells";
    side.className = "side";
    legend.className = "ends";
    button.type = "button";
    button.className = "classtoken";
    button.append(swatch, text);
    legend.append(low, high);
    side.append(button, bar, legend, ends);
    cells.append(canvas, svg);
    $(id).append(cells, side);
    cells.addEventListener("click", (event) => chooseKey(patchAt(cells, event)));
    button.addEventListener("click", () => chooseKey(-1));
    maps[id] = { canvas, svg, swatch, text, bar, low, high, button };
  }

  /** Draw one: `values` by token; colours from `below` over the paper at 0 to `above`. */
  function drawMap(id, numbers, values, above, below, format) {
    const map = maps[id], top = Math.max(...values.map(Math.abs)) || 1, signed = Math.min(...values) < 0;
    const colours = Array(patches).fill(null);
    numbers.tokens.forEach((patch, i) => { if (patch >= 0) colours[patch] = shade(values[i] / top, above, below); });
    paint(map.canvas, columns, rows, colours);
    mark(map.svg, [[state.query, "query"], [numbers.tokens[numbers.key], "key"]]);
    const [r, g, b] = shade(values[0] / top, above, below);
    map.swatch.style.background = `rgb(${r} ${g} ${b})`;
    map.text.textContent = `class token: ${format(values[0])}`;
    map.button.setAttribute("aria-pressed", String(numbers.key === 0));
    const ramp = Array.from({ length: 65 }, (_, i) => shade(signed ? i / 32 - 1 : i / 64, above, below));
    paint(map.bar, 65, 1, ramp);
    map.low.textContent = signed ? format(-top) : format(0);
    map.high.textContent = format(top);
  }

  /** The pixels of patches (L, 3 p q) from 0 to 1 as colours of the whole picture; null where `left` says so. */
  function picture(values, left = () => false) {
    const width = columns * patchWidth, colours = Array(rows * patchHeight * width).fill(null);
    for (let patch = 0; patch < patches; patch++) {
      if (left(patch)) continue;
      for (let i = 0; i < area; i++) {
        const y = Math.floor(patch / columns) * patchHeight + Math.floor(i / patchWidth), x = (patch % columns) * patchWidth + (i % patchWidth);
        colours[y * width + x] = [0, 1, 2].map((c) => Math.round(255 * Math.min(Math.max(values[patch * pixels + c * area + i], 0), 1)));
      }
    }
    return colours;
  }

  /** Predicted patches as pixels from 0 to 1: with the true patch's mean and deviation, then those of the data. */
  function predictedPixels() {
    const values = run.pixels.slice();
    for (let patch = 0; patch < patches; patch++) {
      if (!state.hidden[patch]) continue;
      const [mean, deviation] = statistics(run.values, patch);
      for (let i = 0; i < pixels; i++) {
        const channel = Math.floor(i / area), value = run.predicted[patch * pixels + i] * deviation + mean;
        values[patch * pixels + i] = value * page.std[channel] + page.mean[channel];
      }
    }
    return values;
  }

  function drawPictures(filled) {
    const size = [columns * patchWidth, rows * patchHeight];
    paint($("seen"), ...size, picture(run.pixels, (patch) => state.hidden[patch]));
    paint($("filled"), ...size, picture(filled));
    paint($("whole"), ...size, picture(run.pixels));
    paint($("seen-again"), ...size, picture(run.pixels, (patch) => state.hidden[patch]));
    const own = (values) => values.subarray(state.guessed * pixels, (state.guessed + 1) * pixels);
    const shown = { guess: own(filled), truth: own(run.pixels), "guess-before": past[0].guess, "guess-now": own(filled), "truth-again": own(run.pixels) };
    for (const [id, values] of Object.entries(shown)) {
      const colours = [];
      for (let i = 0; i < area; i++) colours.push([0, 1, 2].map((c) => Math.round(255 * Math.min(Math.max(values[c * area + i], 0), 1))));
      paint($(id), patchWidth, patchHeight, colours);
    }
  }

  function drawMarks(numbers) {
    const marks = [[state.query, "query"], [numbers.tokens[numbers.key], "key"]];
    if (document.activeElement === $("stage") || taken !== null) marks.push([cursor, "cursor"]);
    mark($("marks"), marks);
    mark($("marks-again"), marks.slice(0, 2));
  }

  function draw() {
    colours = {};
    const numbers = results(), { key } = numbers, keyPatch = numbers.tokens[key], hidden = state.hidden[state.query];
    const count = state.hidden.filter(Boolean).length;
    drawPictures(predictedPixels());
    drawMarks(numbers);
    $("seen-caption").textContent = `The model sees ${patches - count} of ${patches} patches. Orange: the query, ${place(state.query)}${hidden ? ", masked" : ""}. Green: a key, ${place(keyPatch)}.`;
    strip("strip-x", numbers.x, "--x", "x");
    strip("strip-q", numbers.q, "--q", "q");
    strip("strip-k", numbers.k, "--k", "k");
    strip("strip-v", numbers.v, "--v", "v");
    strip("strip-o", numbers.o, "--o", "o");
    strip("strip-added", numbers.added, "--x", "what is added");

    // The sentences
    const where = isDecoder() ? "the decoder" : `layer ${layer().block} of the encoder`, { d } = numbers;
    const began = hidden
      ? "The patch is masked, so its token began as the mask token, the same for all masked patches, plus its position"
      : "It began as the embedding of the patch, its pixels times W_E, plus its position";
    const below = (isDecoder() && !hidden) || layer().block > 0 ? "; the layers below have added to it." : "; no layer below has added to it yet.";
    $("say-x").textContent = `The normalised token of the patch in ${place(state.query)}, at the input of attention in ${where}: ${numbers.x.length} numbers. ${began}${below}`;
    $("say-k").textContent = `Below is the key of ${place(keyPatch)}. Choose another key in any map, or with K on the image.`;
    const score = numbers.scores[key], share = numbers.shares[key];
    const middle = numbers.scores.reduce((total, one) => total + one, 0) / numbers.n;
    $("say-score").textContent = `q and k are multiplied number by number and summed, then divided by √${d}: the score is ${number(score)}. The dot product is the definition; similarity is an interpretation. The map shows how far each score is from their mean, ${number(middle)}: the softmax ignores what all scores of a query have in common.`;
    $("say-share").textContent = `A weight a is e to the score, divided by the sum over all ${numbers.n} tokens: here ${percent(share)}. Uniform attention would give ${percent(1 / numbers.n)}.`;
    $("say-error").textContent = `The rest of the model turns the token of the masked patch in ${place(state.guessed)} into pixels. The error is their mean squared difference from the patch’s own: ${number(numbers.error, 3)}.`;
    const mean = numbers.shares.reduce((total, a, j) => total + a * numbers.helps[j], 0), help = numbers.helps[key], slope = numbers.gscores[key];
    const wish = slope < 0 ? "It is negative: a higher score would lower the error, so a training step raises the score." : "It is positive: a higher score would raise the error, so a training step lowers the score.";
    $("say-slope").textContent = `For the chosen key: ${number(share, 3)} × (${small(help, 4)} − ${mean < 0 ? `(${small(mean, 4)})` : small(mean, 4)}) = ${small(slope, 4)}. ${wish}`;

    // The maps: scores and shares in the ink of the page, what would help in red and blue
    const ink = style("--ink"), less = style("--g"), more = style("--x");
    drawMap("map-scores", numbers, numbers.scores.map((one) => one - middle), ink, style("--v"), (value) => number(value, 1));
    drawMap("map-shares", numbers, numbers.shares, ink, ink, percent);
    drawMap("map-helps", numbers, numbers.helps.map((value) => value - mean), less, more, small);
    drawMap("map-slopes", numbers, numbers.gscores, less, more, small);

    drawSteps(numbers);
    saveLink();
  }

  /** Before and after the steps, and in between. */
  function drawSteps({ key, tokens }) {
    const taken = past.length - 1;
    $("row-score").textContent = `score of ${place(tokens[key])}`;
    $("now").textContent = ["now", "after 1 step"][taken] || `after ${taken} steps`;
    $("undo").disabled = taken === 0;
    const shown = {
      score: [(one) => one.scores[key], number],
      share: [(one) => one.shares[key], percent],
      error: [(one) => one.error, (value) => number(value, 3)],
    };
    for (const [name, [measure, format]] of Object.entries(shown)) {
      const values = past.map(measure);
      $(`${name}-before`).textContent = format(values[0]);
      $(`${name}-now`).textContent = format(values[taken]);
      curve($(`${name}-curve`), values);
    }
    $("say-step").textContent = taken ? sayStep(key, past[0], past[taken - 1], past[taken]) : "";
  }

  /** A curve through numbers in a box of 100 x 20. */
  function curve(path, values) {
    const low = Math.min(...values), span = Math.max(...values) - low || 1, end = Math.max(values.length - 1, 1);
    const points = values.map((value, i) => `${(100 * i) / end} ${20 - (20 * (value - low)) / span}`);
    path.setAttribute("d", `M${points.join("L")}`);
  }

  /** What the last step did, and why. */
  function sayStep(key, start, before, now) {
    const fallen = start.error - now.error;
    if (Math.abs(fallen) < 0.001) return "The error has hardly changed: it depends little on the scores of this layer. The higher the learning rate, the more one sees.";
    if (now.error > before.error) return "The last step has raised the error: the learning rate is too high here. Undo the steps, and choose a lower one.";
    if (fallen < 0) return "The error is above that at the start: the learning rate is too high here. Undo the steps, and choose a lower one.";
    const said = `The error has fallen by ${number(fallen, 3)}. Nobody told the query which key to prefer: the derivative of the error did, through all scores at once.`;
    if (now.shares[key] >= before.shares[key]) return said;
    const why = before.gscores[key] > 0
      ? "because the derivative with respect to its score was positive: more of it would have raised the error."
      : "although its derivative was negative: all tokens share W_Q and W_K, so a step moves all scores at once.";
    return `${said} The last step made the weight of this key smaller, ${why}`;
  }

  // ---- Choosing -------------------------------------------------------------------------------------------------------

  let cursor = 0, taken = null;

  function fillSelect(id, names, value) {
    $(id).replaceChildren(...names.map((name, i) => new Option(name, i, false, i === value)));
  }

  function showControls() {
    fillSelect("picture", page.pictures.map(({ name }) => name), state.picture);
    fillSelect("layer", layers.map(({ part, block }) => (part === "decoder" ? "decoder" : `encoder ${block}`)), state.layer);
    fillSelect("rate", page.rates, page.rates.indexOf(state.rate));
    fillSelect("head", Array.from({ length: layer().heads }, (_, h) => String(h)), state.head);
    document.querySelector(`input[name="kind"][value="${state.kind}"]`).checked = true;
  }

  /** After a change of what is computed. */
  function changed() {
    state.head = Math.min(state.head, layer().heads - 1);
    takeWeights();
    compute();
    showControls();
    draw();
  }

  function choosePatch(patch) {
    if (isToken(patch)) state.query = patch;
    if (state.hidden[patch]) state.guessed = patch;
    state.key = null;
    changed();
  }

  function chooseKey(patch) {
    if (!isToken(patch) && patch >= 0) return;
    state.key = patch;
    draw();
  }

  function hide(patch) {
    const count = state.hidden.filter(Boolean).length;
    // one to guess, and one to see
    if (count === (state.hidden[patch] ? 1 : patches - 1)) return;
    state.hidden[patch] = !state.hidden[patch];
    state.key = null;
    changed();
  }

  function swap(a, b) {
    if (a === b) return;
    [state.order[a], state.order[b]] = [state.order[b], state.order[a]];
    [state.hidden[a], state.hidden[b]] = [state.hidden[b], state.hidden[a]];
    state.key = null;
    changed();
  }

  function patchAt(element, event) {
    const box = element.getBoundingClientRect();
    const cell = (share, count) => Math.min(Math.max(Math.floor(share * count), 0), count - 1);
    return cell((event.clientY - box.top) / box.height, rows) * columns + cell((event.clientX - box.left) / box.width, columns);
  }

  /** What a click does; a patch is swapped with the one that was taken before. */
  function use(patch, tool) {
    if (tool === "choose") choosePatch(patch);
    else if (tool === "hide") hide(patch);
    else if (taken === null) { taken = cursor = patch; draw(); }
    else { const from = taken; taken = null; swap(from, patch); }
  }

  const tool = () => document.querySelector('input[name="tool"]:checked').value;
  let pressed = null;
  $("stage").addEventListener("pointerdown", (event) => {
    pressed = cursor = patchAt($("stage"), event);
    $("stage").setPointerCapture(event.pointerId);
  });
  $("stage").addEventListener("pointermove", (event) => {
    if (pressed === null) return;
    cursor = patchAt($("stage"), event);
    drawMarks(results());
  });
  $("stage").addEventListener("pointerup", (event) => {
    const from = pressed, to = patchAt($("stage"), event);
    pressed = null;
    if (from === to) use(to, tool());
    else if (from !== null && event.pointerType !== "touch") { taken = null; swap(from, to); }
  });
  // a finger that moves scrolls the page
  $("stage").addEventListener("pointercancel", () => { pressed = null; });
  $("stage").addEventListener("keydown", (event) => {
    const moves = { ArrowUp: -columns, ArrowDown: columns, ArrowLeft: -1, ArrowRight: 1 };
    if (event.key in moves) {
      const to = cursor + moves[event.key], sameRow = Math.floor(to / columns) === Math.floor(cursor / columns);
      if (to >= 0 && to < patches && (Math.abs(moves[event.key]) > 1 || sameRow)) cursor = to;
      drawMarks(results());
    } else if (event.key === "Enter") use(cursor, "choose");
    else if (event.key === "k" || event.key === "K") chooseKey(cursor);
    else if (event.key === "h" || event.key === "H") use(cursor, "hide");
    else if (event.key === "s" || event.key === "S") use(cursor, "move");
    else return;
    event.preventDefault();
  });
  for (const kind of ["focus", "blur"]) $("stage").addEventListener(kind, () => drawMarks(results()));

  $("picture").addEventListener("change", (event) => {
    state.picture = Number(event.target.value);
    state.order = [...Array(patches).keys()];
    state.hidden = [...page.pictures[state.picture].hidden].map((cell) => cell === "1");
    state.query = state.guessed = state.hidden.indexOf(true, patches / 2);
    state.key = null;
    changed();
  });
  $("layer").addEventListener("change", (event) => { state.layer = Number(event.target.value); state.key = null; changed(); });
  $("head").addEventListener("change", (event) => { state.head = Number(event.target.value); state.key = null; changed(); });
  for (const input of document.querySelectorAll('input[name="kind"]')) {
    input.addEventListener("change", () => { state.kind = input.value; state.key = null; changed(); });
  }
  function steps(count) {
    // the key stays the one that was chosen, or the one with the most negative derivative
    state.key = results().tokens[results().key];
    for (let i = 0; i < count; i++) { step(); compute(); }
    draw();
  }
  $("rate").addEventListener("change", (event) => { state.rate = page.rates[event.target.value]; });
  $("step").addEventListener("click", () => steps(1));
  $("ten").addEventListener("click", () => steps(10));
  $("undo").addEventListener("click", () => changed());
  $("reset").addEventListener("click", () => { reset(); changed(); });
  $("copy").addEventListener("click", async () => {
    let said = "Link copied";
    try {
      await navigator.clipboard.writeText(location.href);
    } catch { // the browser does not let a page write there
      said = "The link is in the address bar";
    }
    $("copy").textContent = said;
    setTimeout(() => { $("copy").textContent = "Copy link"; }, 3000);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  // ---- A state is a link ----------------------------------------------------------------------------------------------

  const LINKED = ["picture", "layer", "head", "query", "guessed"];

  function saveLink() {
    const link = new URLSearchParams(LINKED.map((name) => [name, state[name]]));
    link.set("kind", state.kind);
    link.set("hidden", state.hidden.map(Number).join(""));
    link.set("order", state.order.join("."));
    history.replaceState(null, "", `#${link}`);
  }

  /** Take what a link says, where it makes sense. */
  function readLink() {
    const link = new URLSearchParams(location.hash.slice(1));
    const most = { picture: pictures.length, layer: layers.length, head: 99, query: patches, guessed: patches };
    for (const name of LINKED) {
      const value = Number(link.get(name) ?? NaN);
      if (Number.isInteger(value) && value >= 0 && value < most[name]) state[name] = value;
    }
    if (["trained", "untrained", "identity"].includes(link.get("kind"))) state.kind = link.get("kind");
    const hidden = link.get("hidden") ?? "";
    if (hidden.length === patches && /^(?=.*0)(?=.*1)[01]+$/.test(hidden)) state.hidden = [...hidden].map((cell) => cell === "1");
    const order = (link.get("order") ?? "").split(".").map(Number);
    if ([...order].sort((a, b) => a - b).join() === [...Array(patches).keys()].join()) state.order = order;
  }

  makeMap("map-scores", "grey: above the mean of this query’s scores; purple: below");
  makeMap("map-shares", "stronger: a larger weight; all together are 100%");
  makeMap("map-helps", "blue: below the average, a larger weight lowers the error; red: raises it");
  makeMap("map-slopes", "blue: a step raises this score; red: a step lowers it");
  reset();
  readLink();
  changed();
  $("notice").hidden = true;
  $("lesson").hidden = false;
  // for tests, and for the curious in the console
  window.lesson = { state, results, changed, step: () => steps(1), weights: (name) => weights[name] };
})();
