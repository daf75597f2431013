// The page in Chromium: asks, streams, stops. page.mjs ADDRESS CHROMIUM PICTURE.
import assert from "node:assert";
import { createRequire } from "node:module";
const require = createRequire(process.env.CLIENTS + "/");
const { chromium } = require("playwright-core");

const [address, executablePath, picture] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 900, height: 640 } });
const wrong = [], asked = [];
page.on("pageerror", error => wrong.push(error.message));
page.on("console", message => message.type() === "error" && wrong.push(message.text()));
page.on("request", request => asked.push(request.url()));
await page.goto(address + "/");
await page.waitForFunction(() => document.getElementById("model").textContent === "demo");
await page.click("summary");
await page.fill("#seed", "3");
await page.fill("#temperature", "0.5");
await page.fill("#max_tokens", "40");
await page.fill("#text", "This package provides");
await page.press("#text", "Enter");
await page.waitForSelector(".rate");
const text = await page.textContent(".assistant");
const rate = await page.textContent(".rate");
assert(text.length > 10 && /tokens, [\d.]+ per second/.test(rate), text + rate);
const direct = await fetch(address + "/v1/chat/completions", {
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify({ messages: [{ role: "user", content: "This package provides" }], seed: 3, temperature: 0.5, max_tokens: 40 }),
}).then(r => r.json());
assert.equal(text, direct.choices[0].message.content);
// A long answer is stopped: its request ends in the server, and what was said stays. Others run next to it,
// so that it takes its time.
const completion = body => fetch(address + "/v1/completions", {
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(body),
});
const load = () => fetch(address + "/load").then(r => r.json()).then(all => all.server_load);
const rates = await page.locator(".rate").count();
await page.route("**/v1/chat/completions", (route, request) =>
  route.continue({ postData: JSON.stringify({ ...request.postDataJSON(), ignore_eos: true }) }));
await page.fill("#max_tokens", "400");
await page.fill("#temperature", "1");
await page.fill("#text", "A library for");
const others = completion({ prompt: "The GNU", n: 7, max_tokens: 450, ignore_eos: true, temperature: 1 });
await page.click("#send");
await page.waitForFunction(() => document.querySelectorAll(".assistant")[1]?.textContent.length > 20);
assert(!(await page.isVisible("#send")), "the answer has ended already");
await page.click("#stop");
await page.waitForSelector("#send:visible");
await others.then(answer => answer.text());
for (let i = 0; (await load()) > 0; i++) {
  assert(i < 100, "the request goes on");
  await new Promise(done => setTimeout(done, 20));
}
const stopped = (await page.textContent(".assistant >> nth=1")).length;
const said = await page.textContent(".rate >> nth=-1");
assert(stopped > 20 && (await page.locator(".rate").count()) === rates + 1 && parseInt(said) < 400, said);
assert.equal(await page.locator(".error").count(), 0);
await page.unroute("**/v1/chat/completions");
// An error is shown.
await page.fill("#temperature", "-3");
await page.fill("#text", "again");
await page.click("#send");
await page.waitForSelector(".error");
assert((await page.textContent(".error")).includes("temperature"));
await page.screenshot({ path: picture });
assert(asked.every(url => url.startsWith(address)), asked.join(" "));
// The refused request above is the one error that the console may have.
assert(wrong.every(text => text.includes("400")), wrong.join("\n"));
await browser.close();
console.log("the page ok:", rate);
