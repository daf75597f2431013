// The page: fetches the demo model, continues what is typed, shows how fast and on what.
import init, { Session } from './engraft_web.js';

const at = (id) => document.getElementById(id);
const FILES = ['config.json', 'generation_config.json', 'model.safetensors', 'tokenizer.json', 'tokenizer_config.json'];
let session = null;
let running = false;
let go_on = true;

function wrong(error) {
  at('device').textContent = error.message ?? String(error);
  at('device').className = 'wrong';
  document.body.dataset.state = 'failed';
}

async function bytes(name) {
  const answer = await fetch(`demo-model/${name}`);
  if (!answer.ok) throw new Error(`${name}: ${answer.status}`);
  return new Uint8Array(await answer.arrayBuffer());
}

// Which adapter the browser hands out; the engine asks for the same one.
async function adapter() {
  if (!navigator.gpu) throw new Error('this browser has no WebGPU');
  const found = await navigator.gpu.requestAdapter({ powerPreference: 'high-performance' });
  if (!found) throw new Error('this browser offers no WebGPU adapter');
  const { vendor, architecture, description } = found.info;
  return [vendor, architecture, description].filter(Boolean).join(' ') || 'unnamed adapter';
}

async function load() {
  const [name, , ...files] = await Promise.all([adapter(), init({ module_or_path: 'engraft_web_bg.wasm' }), ...FILES.map(bytes)]);
  session = await Session.open(...files);
  at('device').textContent = `on ${name}`;
  at('device').title = session.device();
  at('go').disabled = false;
  at('go').textContent = 'Continue';
  document.body.dataset.state = 'ready';
}

async function answer() {
  const given = at('prompt').value;
  at('given').textContent = given;
  at('sampled').textContent = '';
  [running, go_on] = [true, true];
  at('go').textContent = 'Stop';
  document.body.dataset.state = 'running';
  let [pieces, first] = [0, 0];
  const on_text = (text) => {
    at('sampled').append(text);
    const now = performance.now();
    if (pieces === 0) first = now;
    pieces += 1;
    if (pieces > 1) at('speed').textContent = `${((pieces - 1) * 1000 / (now - first)).toFixed(1)} tokens/s`;
    return go_on;
  };
  const [tokens, temperature, seed] = ['tokens', 'temperature', 'seed'].map((id) => Number(at(id).value));
  try {
    const sampled = await session.generate(given, tokens, temperature, seed, on_text);
    document.body.dataset.sampled = sampled;
    document.body.dataset.state = 'done';
  } finally {
    running = false;
    at('go').textContent = 'Continue';
  }
}

at('ask').addEventListener('submit', (event) => {
  event.preventDefault();
  if (running) go_on = false;
  else if (session) answer().catch(wrong);
});
load().catch(wrong);
