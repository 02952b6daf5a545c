// The AI SDK against a running supervisor: `ai_sdk.mjs URL MODEL`. Four of its providers, each whole and streamed.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText, tool } from "ai";
import { z } from "zod";

const [url, model] = process.argv.slice(2);
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const providers = {
  "openai chat": openai.chat(model),
  "openai responses": openai.responses(model),
  anthropic: createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" })(model),
  "openai-compatible": createOpenAICompatible({ name: "here", baseURL: `${url}/v1`, includeUsage: true })(model),
};
const weather = tool({
  description: "The weather of a city.",
  inputSchema: z.object({ celsius: z.boolean() }),
});

for (const [name, provider] of Object.entries(providers)) {
  const asked = { model: provider, prompt: "Name three colours.", maxOutputTokens: 40, temperature: 0, maxRetries: 0 };
  const whole = await generateText(asked);
  assert.ok(whole.text.length > 0, `${name}: no text`);
  assert.ok(whole.usage.outputTokens > 0, `${name}: no usage`);

  const streamed = streamText(asked);
  let text = "";
  for await (const piece of streamed.textStream) text += piece;
  assert.equal(text, whole.text, `${name}: the stream says something else`);
  assert.ok((await streamed.usage).outputTokens > 0, `${name}: no usage in the stream`);

  const called = await generateText({
    ...asked,
    maxOutputTokens: 200,
    tools: { weather },
    toolChoice: { type: "tool", toolName: "weather" },
  });
  assert.equal(called.toolCalls.length, 1, `${name}: no call`);
  assert.equal(typeof called.toolCalls[0].input.celsius, "boolean", `${name}: a wrong argument`);

  await assert.rejects(generateText({ ...asked, temperature: 9 }), undefined, `${name}: a wrong value was taken`);
  console.log(name, "ok");
}
