// The page in headless Chromium: loads, continues a prompt greedily, and is looked at.
//
//   NODE_PATH=folder/of/node_modules node engraft/web/check.mjs http://127.0.0.1:8000/ CHROMIUM SCREENSHOT.png [TEXT]
//
// Fails when the page reports an error, draws nothing, or (with TEXT) does not begin as the native engine does.
import path from 'node:path';
const { chromium } = await import(path.join(process.env.NODE_PATH, 'playwright-core', 'index.mjs'));

const [url, executablePath, screenshot, expected] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--enable-unsafe-webgpu'] });
const page = await browser.newPage({ viewport: { width: 900, height: 640 }, colorScheme: 'light' });
page.on('console', (m) => console.log(`[page] ${m.text()}`));
page.on('pageerror', (e) => console.log(`[page] ${e}`));
const state = async (wanted) => {
  await page.waitForFunction((w) => [w, 'failed'].includes(document.body.dataset.state), wanted, { timeout: 90000 });
  if ((await page.evaluate(() => document.body.dataset.state)) === 'failed') throw new Error(await text('#device'));
};
const text = (id) => page.locator(id).textContent();
let status = 1;
try {
  await page.goto(url);
  await state('ready');
  await page.fill('#tokens', '40');
  await page.fill('#temperature', '0');
  await page.click('#go');
  await state('done');
  const [sampled, speed, device] = [await text('#sampled'), await text('#speed'), await text('#device')];
  const tokens = Number(await page.evaluate(() => document.body.dataset.sampled ?? 0));
  await page.screenshot({ path: screenshot });
  console.log(`${tokens} tokens, ${speed}, ${device}: ${JSON.stringify(sampled)}`);
  console.log(await page.getAttribute('#device', 'title'));
  if (tokens < 2 || sampled.trim().length < 10) throw new Error('no text was sampled');
  if (expected && !sampled.startsWith(expected)) throw new Error(`expected it to begin with ${JSON.stringify(expected)}`);
  status = 0;
} catch (e) {
  console.error(String(e));
  await page.screenshot({ path: screenshot }).catch(() => {});
} finally {
  await browser.close();
}
process.exit(status);
