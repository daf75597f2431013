// Every shader variant through Tint, the WGSL compiler of Chromium, by the `webgpu` package (Dawn for Node):
//
//   cargo run -p engraft-shaders --example variants | NODE_PATH=... node shaders/tint.mjs
//
// naga and Tint disagree in places (uniformity above all); a shader has to please both. Exit status 1 with the
// messages of what Tint refuses, 2 where nothing was checked.
import { readFileSync } from 'node:fs';
import path from 'node:path';

const { create, globals } = await import(path.join(process.env.NODE_PATH, 'webgpu', 'index.js'));
Object.assign(globalThis, globals);
const wanted = { maxStorageBuffersPerShaderStage: 8 };
const features = ['subgroups', 'shader-f16'];
// Dawn for Node gives up after some thousand modules of one device: from time to time there is a new one.
const PER_DEVICE = 1500;
let gpu, adapter, device;
async function open() {
  device?.destroy();
  // Kept: the adapter does not outlive it.
  gpu = create([]);
  adapter = await gpu.requestAdapter();
  if (!adapter) {
    console.error('no adapter: VK_DRIVER_FILES names none that Dawn takes');
    process.exit(2);
  }
  const lacking = features.filter((feature) => !adapter.features.has(feature));
  if (lacking.length > 0) {
    console.error(`the adapter lacks ${lacking.join(', ')}: its variants cannot be checked`);
    process.exit(2);
  }
  device = await adapter.requestDevice({ requiredLimits: wanted, requiredFeatures: features });
  // Errors are read from the compilation's messages; a module that is refused is said again as an error of the device.
  device.addEventListener('uncapturederror', (event) => event.preventDefault());
}
let checked = 0;
const refused = [];
for (const line of readFileSync(0, 'utf8').split('\n').filter(Boolean)) {
  const [label, dialect, code] = JSON.parse(line);
  if (checked % PER_DEVICE === 0) await open();
  const info = await device.createShaderModule({ label, code }).getCompilationInfo();
  const messages = info.messages.filter((m) => m.type === 'error').map((m) => `${m.lineNum}: ${m.message}`);
  if (messages.length > 0) refused.push(`${label} (${dialect}): ${messages.join('; ')}`);
  checked += 1;
}
console.log(`Tint on ${adapter.info.description || adapter.info.device}: ${checked} variants, ${refused.length} refused`);
for (const text of refused.slice(0, 20)) console.log('  ' + text);
process.exit(refused.length > 0 ? 1 : checked > 0 ? 0 : 2);
