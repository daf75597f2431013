// OpenAI's client for Node: openai_client.mjs ADDRESS.
import assert from "node:assert";
import { createRequire } from "node:module";
const require = createRequire(process.env.CLIENTS + "/");
const OpenAI = require("openai").default ?? require("openai");

const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "unused", maxRetries: 0 });
const messages = [{ role: "user", content: "This package provides" }];
const asked = { model: "demo", messages, max_tokens: 12, temperature: 0.5, seed: 3 };
const whole = await client.chat.completions.create(asked);
const text = whole.choices[0].message.content;
assert(text);
let streamed = "";
for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
}
assert.equal(streamed, text);
const vectors = await client.embeddings.create({ model: "demo", input: "a library" });
assert(vectors.data[0].embedding.length > 1);
await assert.rejects(client.chat.completions.create({ ...asked, temperature: -1 }), { param: "temperature" });
// Breaking off a stream ends its request.
const broken = await client.chat.completions.create({ ...asked, max_tokens: 200, stream: true });
for await (const _ of broken) break;
console.log("openai for Node ok");
