// Vercel's `ai` with its OpenAI-compatible provider: `node ai.mjs CHECK BASE_URL MODEL`, JSON on stdout.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

const [check, baseURL, name] = process.argv.slice(2);
const provider = createOpenAICompatible({ name: "caldrix", baseURL, apiKey: "any", includeUsage: true });
const model = provider(name);
const prompt = "hi";

const told = ({ text, usage, finishReason }) => ({ text, usage, finishReason });

async function failure(more) {
  try {
    await generateText({ model, prompt, maxRetries: 0, ...more });
  } catch (error) {
    const { data, isRetryable, message, statusCode } = error;
    return { name: error.name, message, statusCode, isRetryable, data };
  }
  return null;
}

async function streamed(options) {
  const result = streamText({ prompt, maxRetries: 0, ...options });
  let text = "";
  for await (const part of result.textStream) text += part;
  return { text, usage: await result.usage, finishReason: await result.finishReason };
}

const checks = {
  chat: async () => told(await generateText({ model, prompt })),
  stream: () => streamed({ model }),
  stop: async () => told(await generateText({ model, prompt, stopSequences: ["jump"] })),
  completions: async () => told(await generateText({ model: provider.completionModel(name), prompt: "hi" })),
  completions_stream: () => streamed({ model: provider.completionModel(name) }),
  status_400: () => failure({ temperature: -1 }),
  status_404: () => failure({ model: provider("gpt-5") }),
  status_413: () => failure({ prompt: "x".repeat((4 << 20) + 1) }),
  status_429: () => failure({}),
  async cancel() {
    const controller = new AbortController();
    const { textStream } = streamText({ model, prompt, abortSignal: controller.signal, onError() {} });
    let count = 0;
    for await (const part of textStream) {
      count += part.length > 0;
      if (count === 20) controller.abort();
    }
    console.log(JSON.stringify({ count }));
    await new Promise((resolve) => setTimeout(resolve, 5000)); // alive: the SDK itself must have left
  },
};

const found = await checks[check]();
if (found !== undefined) console.log(JSON.stringify(found));
