// Every shader variant through Tint, the WGSL compiler of Chromium, by the `webgpu` package (Dawn for Node):
//
//   cargo run -p engraft-shaders --example variants | NODE_PATH=... node shaders/tint.mjs
//
// naga and Tint disagree in places (uniformity above all); a shader has to please both. Exit status 1 with the
// messages of what Tint refuses, 2 where nothing was checked.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import path from 'node:path';

const require = createRequire(path.join(process.env.NODE_PATH ?? process.cwd(), 'anything.js'));
let dawn;
try {
  dawn = require('webgpu');
} catch {
  dawn = await import(path.join(process.env.NODE_PATH, 'webgpu', 'index.js'));
}
Object.assign(globalThis, dawn.globals);
const adapter = await dawn.create([]).requestAdapter();
if (!adapter) {
  console.error('no adapter: VK_DRIVER_FILES names none that Dawn takes');
  process.exit(2);
}
const wanted = { maxStorageBuffersPerShaderStage: 8 };
const device = await adapter.requestDevice({ requiredLimits: wanted });
let checked = 0;
const refused = [];
for await (const line of createInterface({ input: process.stdin })) {
  const [label, carrier, code] = JSON.parse(line);
  device.pushErrorScope('validation');
  const module = device.createShaderModule({ label, code });
  const info = await module.getCompilationInfo();
  const error = await device.popErrorScope();
  const messages = info.messages.filter((m) => m.type === 'error').map((m) => `${m.lineNum}: ${m.message}`);
  if (error || messages.length > 0) refused.push(`${label} (${carrier}): ${messages.join('; ') || error.message}`);
  checked += 1;
}
console.log(`Tint on ${adapter.info.description || adapter.info.device}: ${checked} variants, ${refused.length} refused`);
for (const text of refused.slice(0, 20)) console.log('  ' + text);
process.exit(refused.length > 0 ? 1 : checked > 0 ? 0 : 2);
