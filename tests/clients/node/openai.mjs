// The official JavaScript SDK: one check a run, `node openai.mjs CHECK BASE_URL MODEL`, JSON on stdout.

import OpenAI from "openai";

const [check, baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "any", maxRetries: 0 });
const messages = [{ role: "user", content: "hi" }];
const usage = { stream: true, stream_options: { include_usage: true } };

async function failure(more) {
  try {
    await client.chat.completions.create({ model, messages, ...more });
  } catch (error) {
    return { name: error.constructor.name, status: error.status, code: error.code, param: error.param };
  }
  return null;
}

const checks = {
  chat: () => client.chat.completions.create({ model, messages }),
  async stream() {
    let text = "";
    let last = null;
    for await (const chunk of await client.chat.completions.create({ model, messages, ...usage })) {
      text += chunk.choices[0]?.delta.content ?? "";
      last = chunk;
    }
    return { text, usage: last.usage };
  },
  async helper() {
    const stream = client.chat.completions.stream({ model, messages, logprobs: true, ...usage });
    return stream.finalChatCompletion();
  },
  stop: () => client.chat.completions.create({ model, messages, stop: ["jump"] }),
  logprobs: () => client.chat.completions.create({ model, messages, logprobs: true, top_logprobs: 2 }),
  async models() {
    const ids = [];
    for await (const found of client.models.list()) ids.push(found.id);
    return { ids, one: (await client.models.retrieve(model)).id };
  },
  completions: () => client.completions.create({ model, prompt: "go\n" }),
  status_400: () => failure({ temperature: -1 }),
  status_404: () => failure({ model: "gpt-5" }),
  status_413: () => failure({ messages: [{ role: "user", content: "x".repeat((4 << 20) + 1) }] }),
  status_429: () => failure({}),
  async cancel() {
    const stream = await client.chat.completions.create({ model, messages, stream: true });
    let count = 0;
    for await (const chunk of stream) {
      count += chunk.choices.length;
      if (count === 20) break; // leaving the loop aborts the request
    }
    console.log(JSON.stringify({ count }));
    await new Promise((resolve) => setTimeout(resolve, 5000)); // alive: the SDK itself must have left
  },
  async abort() {
    const controller = new AbortController();
    setTimeout(() => controller.abort(), 500);
    try {
      await client.chat.completions.create({ model, messages }, { signal: controller.signal });
    } catch (error) {
      return { name: error.constructor.name };
    }
    return null;
  },
};

const found = await checks[check]();
if (found !== undefined) console.log(JSON.stringify(found));
