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
